# Builds the core and its native tests: make -f csrc/tests/native.mk OUT=folder FLAGS='...'
# One vector unit is enough here, the one whose instructions need no flags.
CXX ?= g++
UNIT := $(if $(filter x86_64,$(shell uname -m)),baseline,portable)
ONCE := csrc/cpu/backend.cc csrc/cpu/dispatch.cc
CORE := $(wildcard csrc/*.cc csrc/ops/*.cc csrc/passes/*.cc csrc/cuda/*.cc) $(ONCE)
LAUNCHERS := $(wildcard csrc/cuda/*.cu)
KERNELS := $(filter-out $(ONCE),$(wildcard csrc/cpu/*.cc))
OBJECTS := $(CORE:csrc/%.cc=$(OUT)/core/%.o) $(KERNELS:csrc/%.cc=$(OUT)/kernels/%.o) $(LAUNCHERS:csrc/%.cu=$(OUT)/core/%.o)
TESTS := $(patsubst csrc/tests/%.cc,$(OUT)/%,$(wildcard csrc/tests/*.cc))
COMPILE = @mkdir -p $(@D) && echo $< && $(CXX) -std=c++17 -pthread $(FLAGS) -MMD

.SECONDARY:
all: $(TESTS)

$(OUT)/core/%.o: csrc/%.cc
	$(COMPILE) -DLN_HAVE_$(UNIT) -c $< -o $@

$(OUT)/core/%.o: csrc/%.cu
	$(COMPILE) -x c++ -c $< -o $@

$(OUT)/kernels/%.o: csrc/%.cc
	$(COMPILE) -DLN_UNIT=$(UNIT) -c $< -o $@

$(OUT)/test_%: csrc/tests/test_%.cc $(OBJECTS)
	$(COMPILE) $< $(OBJECTS) -ldl -o $@

-include $(OBJECTS:.o=.d)
