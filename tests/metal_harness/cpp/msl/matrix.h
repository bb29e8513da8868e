// 8x8 matrices spread over a simdgroup: each lane holds two neighbours of one row. Which two is
// not documented by Apple; MLX's own kernels rely on the map below.
#pragma once
#include "simd.h"

namespace msl {

struct Place {
  uint row, column;
};
MSL_INLINE Place place_of(uint lane) {
  const uint quad = lane / 4;
  return {(quad & 4) + lane / 2 % 4, (quad & 2) * 2 + lane % 2 * 2};
}
MSL_INLINE uint lane_at(uint row, uint column) {
  return (row & 4) * 4 + (column & 4) * 2 + (row & 3) * 2 + (column / 2 & 1);
}

}  // namespace msl

namespace metal {

template <class T, int Rows = 8, int Columns = 8>
struct simdgroup_matrix {
  static_assert(Rows == 8 && Columns == 8, "only 8x8 simdgroup matrices exist");
  using storage_type = vec<T, 2>;

  // A fresh matrix is uninitialised in Metal: all ones is a NaN in every float format.
  simdgroup_matrix() { __builtin_memset(static_cast<void*>(&elements), 0xff, sizeof elements); }
  // In Metal this is a DIAGONAL matrix, not a filled one.
  explicit simdgroup_matrix(T diagonal) {
    const auto at = msl::place_of(msl::self->index_in_simdgroup);
    for (uint j = 0; j < 2; j++) elements[j] = at.row == at.column + j ? diagonal : T(0);
  }
  MSL_INLINE storage_type& thread_elements() { return elements; }
  MSL_INLINE const storage_type& thread_elements() const { return elements; }

 private:
  storage_type elements;
};
using simdgroup_float8x8 = simdgroup_matrix<float>;
using simdgroup_half8x8 = simdgroup_matrix<half>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat>;

template <class T, int Rows, int Columns>
MSL_INLINE simdgroup_matrix<T, Rows, Columns> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Rows, Columns> matrix;
  matrix.thread_elements() = vec<T, 2>(value);
  return matrix;
}

}  // namespace metal

namespace msl {

// Loading and storing exchange nothing, but the whole simdgroup must take part.
MSL_INLINE void meet(const char* operation, int line) {
  uint32_t present;
  exchange({operation, line}, nullptr, 0, &present);
  if (present != 0xffffffffu) fail("lane", "%s at line %d in a partial simdgroup", operation, line);
}

MSL_INLINE size_t offset_of(Place at, uint j, ulong per_row, metal::ulong2 origin, bool transpose) {
  const ulong row = transpose ? at.column + j : at.row;
  const ulong column = transpose ? at.row : at.column + j;
  return (origin.y + row) * per_row + origin.x + column;
}

template <class A, class B>
struct Operands {
  metal::vec<A, 2> a;
  metal::vec<B, 2> b;
};

// One row of A times two columns of B, added to two elements of C (which may be absent).
template <class D, class A, class B, class C>
MSL_INLINE void multiply(const char* operation, int line, metal::simdgroup_matrix<D>& d,
                         const metal::simdgroup_matrix<A>& a, const metal::simdgroup_matrix<B>& b,
                         const C* c) {
  const Operands<A, B> mine{a.thread_elements(), b.thread_elements()};
  uint32_t present;
  const unsigned char* slots = exchange({operation, line}, &mine, sizeof mine, &present);
  if (present != 0xffffffffu) fail("lane", "%s at line %d in a partial simdgroup", operation, line);
  const auto of = [slots](uint lane) -> const Operands<A, B>& {
    return *reinterpret_cast<const Operands<A, B>*>(slots + slot_bytes * lane);
  };
  const Place at = place_of(self->index_in_simdgroup);
  float sum[2] = {c ? float(c->thread_elements()[0]) : 0.0f,
                  c ? float(c->thread_elements()[1]) : 0.0f};
  for (uint k = 0; k < 8; k++) {
    const float x = float(of(lane_at(at.row, k)).a[k & 1]);
    const auto& y = of(lane_at(k, at.column)).b;
    for (int j = 0; j < 2; j++) sum[j] = __builtin_fmaf(x, float(y[j]), sum[j]);
  }
  d.thread_elements() = metal::vec<D, 2>(D(sum[0]), D(sum[1]));
}

}  // namespace msl

namespace metal {

template <class T>
MSL_INLINE void simdgroup_load(simdgroup_matrix<T>& matrix, const T* source, ulong per_row = 8,
                               ulong2 origin = 0, bool transpose = false, MSL_LINE) {
  msl::meet("simdgroup_load", line);
  const auto at = msl::place_of(msl::self->index_in_simdgroup);
  for (uint j = 0; j < 2; j++)
    matrix.thread_elements()[j] = source[msl::offset_of(at, j, per_row, origin, transpose)];
}
template <class T>
MSL_INLINE void simdgroup_store(const simdgroup_matrix<T>& matrix, T* target, ulong per_row = 8,
                                ulong2 origin = 0, bool transpose = false, MSL_LINE) {
  msl::meet("simdgroup_store", line);
  const auto at = msl::place_of(msl::self->index_in_simdgroup);
  for (uint j = 0; j < 2; j++)
    target[msl::offset_of(at, j, per_row, origin, transpose)] = matrix.thread_elements()[j];
}
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(simdgroup_matrix<D>& d, const simdgroup_matrix<A>& a,
                                   const simdgroup_matrix<B>& b, const simdgroup_matrix<C>& c,
                                   MSL_LINE) {
  msl::multiply("simdgroup_multiply_accumulate", line, d, a, b, &c);
}
template <class D, class A, class B>
void simdgroup_multiply(simdgroup_matrix<D>& d, const simdgroup_matrix<A>& a,
                        const simdgroup_matrix<B>& b, MSL_LINE) {
  const simdgroup_matrix<D>* nothing = nullptr;
  msl::multiply("simdgroup_multiply", line, d, a, b, nothing);
}

}  // namespace metal
