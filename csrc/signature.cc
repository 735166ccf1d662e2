#include "signature.h"

#include <cstring>
#include <sstream>

#include "cell.h"

namespace lazynet {
namespace {

uint64_t hash_of(const int64_t* key, std::size_t size) {
  uint64_t hash = 0x9e3779b97f4a7c15u;
  for (std::size_t i = 0; i < size; ++i) {
    hash = (hash ^ static_cast<uint64_t>(key[i])) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  return hash;
}

int64_t bits_of(double number) {
  int64_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

}  // namespace

Broadcast broadcast_of(const Shape& argument, const Shape& result) {
  if (argument == result) return kFull;
  if (argument.rows == 1 && argument.cols == 1) return kScalar;
  return argument.cols == result.cols ? kRow : kColumn;
}

int32_t SignatureTable::intern(const OpInfo& op, const int32_t* ids, const Shape* shapes, int count,
                               const Shape& result, const double* attributes) {
  const std::size_t longest = 2 + op.attribute_count + static_cast<std::size_t>(count);
  if (key_.size() < longest) key_.resize(longest);
  int64_t* next = key_.data();
  *next++ = op.id;
  for (int i = 0; i < op.attribute_count; ++i) *next++ = bits_of(attributes[i]);
  uint8_t broadcast[4] = {};
  const int declared = static_cast<int>(op.arguments.size());
  for (int i = 0; i < count; ++i) {
    const int argument = i < declared ? i : declared - 1;
    const ArgumentInfo& info = op.arguments[argument];
    if (info.list && !info.counted && i > argument) break;  // one contribution for the whole list
    switch (info.role) {
      case Role::kShared:
        *next++ = ids[i];
        break;
      case Role::kRagged:
        *next++ = shapes[i].cols;
        break;
      case Role::kFlat:
        broadcast[i] = broadcast_of(shapes[i], result);
        *next++ = broadcast[i];
        break;
      case Role::kFree:
        break;
    }
  }
  // Optional arguments that are missing make another key.
  if (op.maximum_arguments != op.minimum_arguments && op.maximum_arguments >= 0) *next++ = count;

  const auto size = static_cast<std::size_t>(next - key_.data());
  const uint64_t hash = hash_of(key_.data(), size);
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash & mask;
  for (; slots_[slot] >= 0; slot = (slot + 1) & mask) {
    const Entry& entry = entries_[slots_[slot]];
    if (entry.hash == hash && entry.key_end - entry.key_begin == size &&
        std::memcmp(keys_.data() + entry.key_begin, key_.data(), size * sizeof(int64_t)) == 0)
      return slots_[slot];
  }
  Entry entry{};
  entry.hash = hash;
  entry.key_begin = static_cast<uint32_t>(keys_.size());
  entry.key_end = static_cast<uint32_t>(keys_.size() + size);
  entry.attributes = static_cast<uint32_t>(attributes_.size());
  entry.op = op.id;
  std::memcpy(entry.broadcast, broadcast, sizeof broadcast);
  keys_.insert(keys_.end(), key_.begin(), key_.begin() + static_cast<std::ptrdiff_t>(size));
  attributes_.insert(attributes_.end(), attributes, attributes + op.attribute_count);
  const int32_t signature = static_cast<int32_t>(entries_.size());
  entries_.push_back(entry);
  slots_[slot] = signature;
  if (entries_.size() * 2 > slots_.size()) grow();
  return signature;
}

void SignatureTable::grow() {
  slots_.assign(slots_.size() * 2, -1);
  const std::size_t mask = slots_.size() - 1;
  for (int32_t i = 0; i < size(); ++i) {
    std::size_t slot = entries_[i].hash & mask;
    while (slots_[slot] >= 0) slot = (slot + 1) & mask;
    slots_[slot] = i;
  }
}

void SignatureTable::clear() {
  entries_.clear();
  keys_.clear();
  attributes_.clear();
  slots_.assign(256, -1);
}

std::string SignatureTable::text(int32_t signature, const std::function<std::string(int32_t)>& shared) const {
  const Entry& entry = entries_[signature];
  const OpInfo& op = op_info(entry.op);
  std::ostringstream out;
  out << op.name;
  if (op.id == kOp_cell) {
    const std::shared_ptr<Cell> cell = find_cell(static_cast<int32_t>(attributes(signature)[0]));
    out << ' ' << (cell ? cell->name : "released");
    return out.str();
  }
  const int64_t* word = keys_.data() + entry.key_begin + 1;
  const int64_t* end = keys_.data() + entry.key_end;
  std::istringstream names(op.attributes);
  for (std::string name; names >> name; ++word)
    out << ' ' << name << '=' << attributes(signature)[word - keys_.data() - entry.key_begin - 1];
  for (std::size_t i = 0; word < end && !op.arguments.empty(); ++i) {
    const ArgumentInfo& info = op.arguments[std::min(i, op.arguments.size() - 1)];
    static const char* const spread[] = {"full", "row", "column", "scalar"};
    if (i >= op.arguments.size() && !info.counted) break;
    if (info.role == Role::kShared && end - word > (op.maximum_arguments != op.minimum_arguments))
      out << shared(static_cast<int32_t>(*word++));
    else if (info.role == Role::kRagged)
      out << " cols " << *word++;
    else if (info.role == Role::kFlat)
      out << ' ' << spread[*word++];
    else if (info.role == Role::kFree)
      continue;
    else
      break;
  }
  return out.str();
}

}  // namespace lazynet
