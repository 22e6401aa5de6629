/* Muon: each hidden matrix is updated by its orthogonalised momentum. (Jordan et al.,
 * kellerjordan.github.io/posts/muon, 2024; scale and weight decay: Liu et al., Moonlight, arXiv:2502.16982)
 *
 *   m = momentum m + g,  u = g + momentum m     the op `update` (UPDATE_MOMENTUM), in place of g, the clipped gradient
 *   X = u / (||u||_F + 1e-7), then five times   A = X X^T,  X = (a I + b A + c A A) X,
 *                                               (a, b, c) = (3.4445, -4.7750, 2.0315)
 *   p = p (1 - lr wd) - lr 0.2 sqrt(max(out, in)) X
 *
 * The GEMMs use the dtype of the weights' copy (bf16 or fp32). A matrix with more rows than columns uses X^T X from the
 * other side. Afterwards singular values are between 0.68 and 1.2. The scale gives updates the size of AdamW's, so its
 * learning rate and decay apply.
 *
 * A logical matrix is one matrix of the paper: q, k, v and gates of a fused projection are separate, gate and up are
 * separate, each expert is separate (params.h: `parts`). Fused ones would share one spectrum, and the largest would
 * dominate. Everything else uses AdamW, at optim.adam_rate times the learning rate: embeddings, head, norms, biases,
 * convolutions, decay rates, and matrices whose rows are independent (`rowwise`: routers, gates of one row).
 *
 * How ranks divide the work; the bits are those of one rank, or of one rank with the same gradients:
 *   - Data parallel: matrices are distributed whole. In order of cost, rank r of R takes matrices r modulo R, so the R
 *     matrices of a round cost about the same. Updates X are all-gathered after each round; every rank applies them.
 *   - ZeRO: ranks hold shards of u and of the weights. Before a round the shards of each matrix are sent to the rank
 *     that computes it; afterwards the shards of X are sent back. With several copies (HSDP) each copy does this alone.
 *   - Expert parallel: a rank's experts go to the ranks that have the same ones, in rounds after the others.
 *   - Tensor parallel: ranks hold slabs of a matrix: rows, or columns. A round then has T times as many matrices. Slabs
 *     are exchanged between the shards and the GEMMs, and again after the GEMMs.
 *
 * FLOPs of a matrix with shorter side n and longer side k: 5 (4 n^2 k + 2 n^3). */
#ifndef INGOT_OPTIM_MUON_H
#define INGOT_OPTIM_MUON_H
#include "parallel/exec.h"
#include "optim/offload.h"
#include "parallel/mesh.h"

/* Marks the rows that Muon updates (param.muon), and lists their matrices. Call before params_layout. */
status muon_claim(struct params *p) WARN_UNUSED;
/* Number of elements of the largest matrix, and of the largest slab on a tensor-parallel rank; the longest of all
 * matrices' shorter sides. */
struct muon_most { int64_t count, slab, side; };
struct muon_most muon_most(const struct params *p);
/* Bytes of the work area on a rank. `piece`: number of elements of a slab's largest ZeRO shard; 0: not sharded. */
struct muon_ranks { int ranks, slices; int64_t piece; };
size_t muon_bytes(const struct muon_most *most, dtype dt, const struct muon_ranks *by);
/* Allocates params.work, from counting or real arenas. mesh NULL: one rank. */
void muon_layout(struct params *p, const struct mesh *mesh, struct arena *a);
/* The elements of `master` of the k-th matrix that this rank updates. muon_step uses this order. */
struct muon_span { int64_t master, count; };
struct muon_span muon_span(const struct params *p, int64_t k);
/* Queues the updates of all matrices. Before, `update` must have written u over their gradients. `o` copies master
 * weights that are in host memory; NULL: they are on the device. */
status muon_step(const struct exec *r, const struct run_spec *spec, const struct mesh *mesh,
                 struct offload *o) WARN_UNUSED;
#endif
