/* Muon: each hidden matrix moves by its momentum, orthogonalised.       (Jordan et al., kellerjordan.github.io/posts/muon, 2024; scale and
 *                                                                        weight decay: Liu et al., Moonlight, arXiv:2502.16982)
 *   m = momentum m + g,  u = g + momentum m      by the op `update` (UPDATE_MOMENTUM), in place of g, which is the clipped gradient
 *   X = u / (||u||_F + 1e-7), then five times  A = X X^T,  X = (a I + b A + c A A) X,  (a, b, c) = (3.4445, -4.7750, 2.0315)
 *   p = p (1 - lr wd) - lr 0.2 sqrt(max(out, in)) X
 * The GEMMs run in the type of the weights' copy (bf16 or fp32); of a matrix with more rows than columns from the other side, X^T X.
 * After them singular values lie between 0.68 and 1.2; the scale gives steps the size of AdamW's, so that its rate and decay serve.
 *
 * A logical matrix is what a paper draws as one: q, k, v and gates of a fused projection apart, gate and up apart, each expert apart
 * (params.h: `parts`). Fused ones would share one spectrum: the largest would leave little to the others. All else goes to AdamW, at
 * optim.adam_rate times the rate: embeddings, head, norms, biases, convolutions, decay rates, and matrices whose rows mean nothing
 * together (`rowwise`: routers, gates of one row).
 *
 * Data-parallel ranks share the matrices out, whole: in the order of their cost, rank r of R takes those numbered r modulo R, so that the
 * R matrices of a round are much alike; their steps X are gathered after each round, and every rank applies all of them. Ranks that share
 * out the state (ZeRO) have parts of u and of the weights: before a round the parts of each matrix travel to the rank that makes its step,
 * and afterwards the parts of the step back to those that have the weights; with several copies (HSDP) each copy does so for itself. Ranks
 * that share a layer (tensor parallelism) have slabs of its matrices: rows, or columns. A round then has T times as many matrices, and slabs
 * are exchanged between the parts' travel and the GEMMs, and again behind them. What is dealt out is the work: the bits are those of
 * one rank, or of one rank that has the same gradients.
 *
 * FLOPs of a matrix, n its shorter side, k the longer: 5 (4 n^2 k + 2 n^3). */
#ifndef INGOT_OPTIM_MUON_H
#define INGOT_OPTIM_MUON_H
#include "parallel/exec.h"
#include "optim/offload.h"
#include "parallel/mesh.h"

/* Says which rows are Muon's (param.ortho), and lists their matrices: before params_lay. */
status muon_claim(struct params *p) WARN_UNUSED;
/* Elements of the largest of them, and of the largest part that a rank of its layer has; the longest of all shorter sides. */
struct muon_most { int64_t count, slab, side; };
struct muon_most muon_most(const struct params *p);
/* Bytes that the GEMMs take on a rank. `piece`: elements that one which shares out the state has of a slab, at most; 0: all have all. */
struct muon_ranks { int ranks, slices; int64_t piece; };
size_t muon_bytes(const struct muon_most *most, dtype dt, const struct muon_ranks *by);
/* Takes params.work: counting or real. mesh NULL: one rank. */
void muon_lay(struct params *p, const struct mesh *mesh, struct arena *a);
/* What of the k-th matrix this rank moves: elements of `master`. In this order muon_step does. */
struct muon_span { int64_t master, count; };
struct muon_span muon_span(const struct params *p, int64_t k);
/* Queues the steps of all matrices, after `update` has left u in the place of their gradients. `o`: through which master weights come that lie
 * in host memory; NULL: they do not. */
status muon_step(const struct exec *r, const struct run_spec *spec, const struct mesh *mesh, struct offload *o) WARN_UNUSED;
#endif
