# Builds the CPU's stand-in for CUDA and its tests: make -f csrc/cuda/emulator/emulator.mk OUT=folder FLAGS='...' target
#   library    $(OUT)/libemulator.so
#   tests      the test programs and their kernels
#   check      builds and runs the tests: what follows, each in a folder of its own below $(OUT), with flags of its own
#   check-plain, check-address, check-thread
CXX ?= g++
EMULATOR := csrc/cuda/emulator
LIBRARY := $(OUT)/libemulator.so
SOURCES := $(filter-out $(EMULATOR)/test_%.cc,$(wildcard $(EMULATOR)/*.cc))
OBJECTS := $(patsubst $(EMULATOR)/%.cc,$(OUT)/emulator/%.o,$(SOURCES))
TESTS := $(patsubst $(EMULATOR)/%.cc,$(OUT)/%,$(wildcard $(EMULATOR)/test_*.cc))
KERNELS := $(patsubst $(EMULATOR)/tests/%.cu,$(OUT)/%.so,$(wildcard $(EMULATOR)/tests/*.cu))
WARNINGS := -Wall -Wextra -Werror
COMPILE = @mkdir -p $(@D) && echo $< && $(CXX) -std=c++17 -pthread $(WARNINGS) $(or $(FLAGS_HERE),$(FLAGS)) -MMD
# The run time keeps records that threads of a kernel share without an order: never instrumented for the thread
# sanitizer, it works with it all the same.
RUN_TIME_FLAGS := $(filter-out -fsanitize=thread,$(FLAGS)) -fPIC -fvisibility=hidden
KERNEL_FLAGS := -shared -fPIC -fno-gnu-unique -DLN_EMULATOR -include $(EMULATOR)/emulator.h -x c++

.PHONY: library tests check check-plain check-address check-thread run
.SECONDARY:
library: $(LIBRARY)
tests: $(TESTS) $(KERNELS)
check: check-plain check-address check-thread

check-plain: FLAGS_OF_CHECK := -O1 -g
check-address: FLAGS_OF_CHECK := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all
check-thread: FLAGS_OF_CHECK := -O1 -g -fsanitize=thread
check-plain check-address check-thread: check-%:
	@$(MAKE) --no-print-directory -f $(EMULATOR)/emulator.mk OUT=$(OUT)/$* FLAGS='$(FLAGS_OF_CHECK)' run

# The tests themselves go through the orders of threads and of streams.
run: tests
	$(OUT)/test_driver
	$(OUT)/test_emulator

$(OUT)/emulator/%.o: FLAGS_HERE = $(RUN_TIME_FLAGS)
$(OUT)/emulator/%.o: $(EMULATOR)/%.cc
	$(COMPILE) -c $< -o $@

$(LIBRARY): $(OBJECTS)
	@$(CXX) -shared -Wl,-Bsymbolic-functions $(RUN_TIME_FLAGS) $^ -ldl -pthread -o $@

$(OUT)/%.so: $(EMULATOR)/tests/%.cu
	$(COMPILE) $(KERNEL_FLAGS) $< -o $@

$(OUT)/test_%: $(EMULATOR)/test_%.cc $(LIBRARY)
	$(COMPILE) $< -L$(OUT) -lemulator -Wl,-rpath,'$$ORIGIN' -ldl -o $@

-include $(OBJECTS:.o=.d) $(KERNELS:.so=.d) $(TESTS:=.d)
