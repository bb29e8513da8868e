// Metal's words that C++ does not know. Everything that includes other headers comes before this.
#pragma once

namespace msl {

// `threadgroup T name[N];` is rewritten to a reference made by this.
template <class Storage>
MSL_INLINE Storage& threadgroup_variable(int id, int line) {
  return *static_cast<Storage*>(threadgroup_storage(id, sizeof(Storage), alignof(Storage), line));
}
MSL_INLINE metal::uint3 uint3_of(const uint32_t* p) { return metal::uint3(p[0], p[1], p[2]); }

}  // namespace msl

using namespace metal;

#define METAL_FUNC inline
#define METAL_CONST static constexpr
#define __METAL__ 1
#define __METAL_VERSION__ 310
#define M_PI_F 3.14159265358979323846f
#define M_LOG2E_F 1.44269504088896340736f
// Address spaces are one on a CPU; the lint, not this build, tells them apart.
#define device
#define constant
#define thread
#define threadgroup
#define kernel
#define double error_double_does_not_exist_in_metal
