#include "op.h"

#include <cstring>

#include "shape_rules.h"

namespace lazynet {
namespace {

std::vector<ArgumentInfo> parse_roles(const char* roles) {
  std::vector<ArgumentInfo> arguments;
  for (const char* letter = roles; *letter; ++letter) {
    switch (*letter) {
      case 's':
        arguments.push_back({Role::kShared, false, false, false, false});
        break;
      case 'r':
        arguments.push_back({Role::kRagged, false, false, false, false});
        break;
      case 'R':
        arguments.push_back({Role::kRagged, true, false, false, false});
        break;
      case 'f':
        arguments.push_back({Role::kFlat, false, false, false, false});
        break;
      case 'p':
        arguments.push_back({Role::kFree, false, false, false, false});
        break;
      case '?':
        arguments.back().optional = true;
        break;
      case '+':
        arguments.back().list = arguments.back().counted = true;
        break;
      case '*':
        arguments.back().list = true;
        break;
    }
  }
  return arguments;
}

int count_words(const char* text) {
  int words = 0;
  for (const char* c = text; *c; ++c) words += *c != ' ' && (c == text || c[-1] == ' ');
  return words;
}

// Which of the words is `word`, or -1.
int index_of(const char* text, const char* word) {
  const std::size_t length = std::strlen(word);
  int index = 0;
  for (const char* c = text; *c; ++c) {
    if (*c == ' ')
      ++index;
    else if ((c == text || c[-1] == ' ') && std::strncmp(c, word, length) == 0 && (!c[length] || c[length] == ' '))
      return index;
  }
  return -1;
}

ScratchRule scratch_rule_of(int id) {
  switch (id) {
#define LN_SCRATCH(name, rule) \
  case kOp_##name:             \
    return &scratch_rules::rule;
#include "ops.def"
    default:
      return nullptr;
  }
}

OpInfo make(int id, const char* name, const char* family, const char* roles, const char* attributes, ShapeRule rule,
            const char* reads, OpKind kind, bool has_shared, bool early = false) {
  OpInfo info{};
  info.id = id;
  info.name = name;
  info.family = family;
  info.roles = roles;
  info.attributes = attributes;
  info.backward_reads = reads;
  info.kind = kind;
  info.has_shared = has_shared;
  info.early = early;
  info.reads_arguments = std::strchr(reads, 'a') != nullptr;
  info.reads_result = std::strchr(reads, 'r') != nullptr;
  info.differentiable = reads[0] != '-';
  info.rate = index_of(attributes, "rate");
  info.shape_rule = rule;
  info.scratch_rule = scratch_rule_of(id);
  info.arguments = parse_roles(roles);
  info.flat = !info.arguments.empty() && info.arguments[0].role == Role::kFlat;
  info.attribute_count = count_words(attributes);
  for (const ArgumentInfo& argument : info.arguments) {
    if (!argument.optional) ++info.minimum_arguments;
    ++info.maximum_arguments;
    if (argument.list) info.maximum_arguments = -1;
    info.matrices = info.matrices || argument.packed;
  }
  for (const ArgumentInfo& argument : info.arguments)
    info.matrices = info.matrices && !early && (argument.packed || argument.role == Role::kShared);
  return info;
}

#define LN_STRING(x) #x
const OpInfo kTable[kOpCount] = {
#define LN_KERNEL(name, family, roles, attributes, rule, reads) \
  make(kOp_##name, #name, LN_STRING(family), roles, attributes, &shape_rules::rule, reads, OpKind::kKernel, false),
#define LN_SHARED(name, family, roles, attributes, rule, reads) \
  make(kOp_##name, #name, LN_STRING(family), roles, attributes, &shape_rules::rule, reads, OpKind::kKernel, true),
#define LN_EARLY(name, family, roles, attributes, rule, reads) \
  make(kOp_##name, #name, LN_STRING(family), roles, attributes, &shape_rules::rule, reads, OpKind::kKernel, true, true),
#define LN_COMPOSITE(name, family, roles, attributes, rule, reads) \
  make(kOp_##name, #name, LN_STRING(family), roles, attributes, rule, reads, OpKind::kKernel, true),
#define LN_VIEW(name, family, roles, attributes, rule) \
  make(kOp_##name, #name, LN_STRING(family), roles, attributes, &shape_rules::rule, "", OpKind::kView, false),
#define LN_SOURCE(name, family, attributes) \
  make(kOp_##name, #name, LN_STRING(family), "", attributes, nullptr, "", OpKind::kSource, false),
#include "ops.def"
};

}  // namespace

const OpInfo& op_info(int op) { return kTable[op]; }

}  // namespace lazynet
