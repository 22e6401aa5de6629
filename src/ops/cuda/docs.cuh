// Documents of packed rows, as kernels walk through them. cu_seqlens is on the device and read only there.
#pragma once
#include "ops/cuda/device.cuh"

// The document of a row, advanced row by row. Empty documents have no row.
struct doc_cursor {
    const int32_t *cu;
    int doc, begin, end;

    // The last document that begins at or before `row`, which lies inside [cu[0], cu[docs]).
    __device__ doc_cursor(const int32_t *cu_, int docs, int row) : cu(cu_)
    {
        int lo = 0, hi = docs;
        while (hi - lo > 1) {
            int mid = lo + (hi - lo) / 2;
            if (__ldg(cu + mid) <= row) lo = mid;
            else hi = mid;
        }
        doc = lo;
        begin = __ldg(cu + lo);
        end = __ldg(cu + lo + 1);
    }
    __device__ void advance(int row)
    {
        while (row >= end) {
            doc++;
            begin = end;
            end = __ldg(cu + doc + 1);
        }
    }
};
