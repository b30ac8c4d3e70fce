// PF_SHUFFLE(a, b, i, ...): a vector of the named lanes of a and b, those of b counted after those of a. gcc has the
// builtin function that clang has from 12 on; its own, which older ones have too, takes the lanes as a vector.
#pragma once

#if defined(__clang__) || __GNUC__ >= 12
#define PF_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PF_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, decltype((a) < (b)){__VA_ARGS__})
#endif
