// PF_SHUFFLE(a, b, i, ...): a vector of the given lanes of a and b, where b's lanes are numbered after a's. gcc has
// the builtin function of clang since 12. Older versions have a different builtin that takes the lanes as a vector.
#pragma once

#if defined(__clang__) || __GNUC__ >= 12
#define PF_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PF_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, decltype((a) < (b)){__VA_ARGS__})
#endif
