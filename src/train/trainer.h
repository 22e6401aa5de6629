/* trainer: a model with its memory, its ops and its rank in the run; one optimizer step, evaluation, checkpoints. */
#ifndef INGOT_TRAIN_TRAINER_H
#define INGOT_TRAIN_TRAINER_H
#include "data/load/loader.h"
#include "dev/dev.h"
#include "optim/optim.h"
#include "parallel/grad_overlap.h"
#include "plan/plan.h"
#include "train/checkpoint.h"
#include "train/fp8_run.h"
#include "train/health.h"
#include "train/lineage.h"
#include "train/pipeline.h"
#include "train/spike.h"

/* A GPU runs its first step op by op (libraries load, algorithms are chosen), captures the second as one CUDA graph,
 * and replays it from then on. EAGER: every further step runs op by op (CPU, train.graph=false, or a step that cannot
 * be captured). */
enum step_mode { STEP_FIRST, STEP_CAPTURE, STEP_REPLAY, STEP_EAGER };

/* Called between the micro-batches of a step and between the batches of an evaluation, at the same points on all ranks:
 * `done` of `parts` are computed. If it returns STATUS_STOPPED, the step or the evaluation is dropped. A GPU's step is
 * not interrupted, because it is queued as a whole; nor are a pipeline's step and evaluation, because its ranks are at
 * different points. */
struct trainer_pause {
    status (*fn)(void *ctx, int64_t done, int64_t parts); /* NULL: none */
    void *ctx;
};

struct tokenizer; /* data/tokenizer/tokenizer.h */
struct trainer {
    struct spec spec; /* as given, with train.micro_batch resolved */

    /* The device and this rank's place in the run. */
    struct dev dev;
    struct stream stream; /* of a GPU; exec.stream is NULL on the CPU */
    struct ops ops;
    struct mesh mesh;
    char gemm_cache[SPEC_TEXT + 64]; /* path of the file of measured GEMM algorithms; empty: none */

    /* The model and all memory. */
    struct memory memory;
    struct decoder decoder;
    struct activations acts;
    struct rank_state rank; /* gradient sums, ZeRO, optimizer offload */
    struct feed feed;
    struct context context; /* used by the feed: cuts out this rank's part of a micro-batch */
    struct fp8_run fp8;    /* used with train.precision=fp8 */

    /* How a step runs. */
    struct exec exec;
    struct side_stream side_stream;
    struct sp_overlap sp_overlap;     /* tensor parallelism: communication that overlaps GEMMs */
    struct grad_overlap grad_overlap; /* data parallelism: the all-reduce that overlaps the backward */
    struct pipeline pipeline;
    struct graph graph;        /* a whole step; with train.on_spike=skip, its forward, backward and norm */
    struct graph graph_update; /* with train.on_spike=skip: the optimizer update that follows */
    enum step_mode mode; /* how the next step runs */
    int stage_micro_count; /* number of micro-batches of the last step */
    struct trainer_pause pause;
    struct verifier *verify; /* train.verify (train/verify.h); NULL: off */
    struct snapshot *snapshot; /* copies a GPU's state during a step (train/snapshot.h); NULL: never */
    struct save_host *hosts; /* [ranks], for errors of a save (train/save_parts.h); NULL: not known yet */
    struct save *save; /* asynchronous saves (train/save.h); NULL: there was none yet */

    /* Identity of the training data (train/data_identity.h). A run stores it in its checkpoints; a restored model has
     * what its checkpoint says. NULL: not known. Owned. */
    json_t *data;
    bool accept_data; /* --accept-data-change: it is no error if the data differ */

    /* Replaces optim.schedule: the rate rises from `low` in step `first` to `high` in the last of `steps`, by the same
     * factor each step; steps 0: optim.schedule applies (train/lr_find.h). */
    struct lr_rise {
        double low, high;
        int64_t first, steps;
    } rise;

    /* Progress. */
    int64_t step;   /* optimizer steps done */
    int64_t tokens; /* tokens consumed */
    int64_t steps_total;
    struct health health; /* judges the losses and norms of the steps done */
    struct spike spike;   /* the loss-spike detector's state after the steps done (train/spike.h) */
    struct lineage lineage; /* the rewinds and the skipped data that led to the present state */
    bool told_unsound;    /* the log has said that checkpoints are not sound */
};

/* Opens the spec's device and op set and allocates all memory. With `args` NULL it does so for training as the spec
 * says; else for `args`, and fills in their ops, device and memory limit. `isa`: see ops_cpu. Weights are zero until
 * trainer_init_weights or trainer_restore. */
status trainer_open(struct trainer *t, const struct spec *spec, const struct plan_layout_args *args,
                    const char *isa) WARN_UNUSED;
/* One of several ranks, for training. STATUS_COMM when ranks have different specs. */
status trainer_open_rank(struct trainer *t, const struct spec *spec, const char *isa, struct comm *comm) WARN_UNUSED;
/* Opens master weights alone, in host memory, to read or write files, whatever device, precision or backend the spec
 * names. t->spec stays as given. */
status trainer_open_weights(struct trainer *t, const struct spec *spec) WARN_UNUSED;
void trainer_close(struct trainer *t);
status trainer_init_weights(struct trainer *t) WARN_UNUSED;
/* model.engram_fold: makes the token map from the run's tokenizer, for fresh weights. Checkpoints store it. */
status trainer_fold(struct trainer *t, const struct tokenizer *tokenizer) WARN_UNUSED;

struct step_result {
    double loss, lr, grad_norm, grad_norm_clipped; /* over all ranks; loss: mean nats per valid token */
    double mtp_loss;                               /* mean over the MTP modules; NaN without them */
    double z_loss;                                 /* the z-loss, not part of `loss`; NaN without train.z_loss */
    double halt_loss;                              /* the halting head's, per document and segment; NaN without it */
    double aux_loss, load_max, load_min;           /* MoE layers: auxiliary loss, expert loads; 0 without them */
    double moe_dropped;                            /* fraction of slots dropped; NaN without model.moe_capacity */
    double bubble;                                 /* pipeline: fraction of time without compute; else NaN */
    int64_t tokens, targets, padding;              /* tokens of the step; tokens in the loss; tokens of no document */
    enum spike_kind spike;                         /* spike verdict for this step, against the previous ones */
    bool update_skipped;                           /* its update was skipped */
    char spike_why[SPIKE_WHY];                     /* why `spike` is not SPIKE_NONE */
    /* FP8, measured every fp8.monitor steps, otherwise NaN: the number of tensors that saturate, and the smallest
     * headroom in binades between a tensor's largest element and the largest code, over inputs and over gradients. */
    double fp8_saturated, fp8_headroom_x, fp8_headroom_dy;
};
/* One optimizer step on all micro-batches of `b` and of the other ranks. STATUS_NUMERIC when the loss or a gradient is
 * not finite, STATUS_STOPPED when t->pause says so; weights and moments are then unchanged. */
status train_step(struct trainer *t, const struct step_batch *b, struct step_result *out) WARN_UNUSED;
/* Frees the captured graphs, so that the next step is not replayed from them. */
static inline void step_graphs_close(struct trainer *t)
{
    dev_graph_close(&t->dev, &t->graph);
    dev_graph_close(&t->dev, &t->graph_update);
}
/* Whether t->pause is called inside a step. */
bool trainer_pauses(const struct trainer *t);

/* Computes the mean loss over the validation shards in order: over every target once, or over the windows of the first
 * `tokens` tokens. Bits per byte count the mean loss for every token of the text, even the first, which nothing
 * predicts. STATUS_STOPPED when t->pause says so. */
struct eval_result {
    double loss, accuracy, bits_per_byte;
    int64_t tokens;
}; /* accuracy: fraction of targets with the highest logit; bits_per_byte: NaN if the shards lack their text bytes */
status train_eval(struct trainer *t, const struct shard_set *val, int64_t tokens,
                  struct eval_result *out) WARN_UNUSED;

/* Saves weights, moments (when laid out for training), step and config below run_dir; keeps the newest
 * spec.run.ckpt_keep. */
status trainer_save(struct trainer *t, const char *run_dir) WARN_UNUSED;
/* Writes RUN/config.yaml: the resolved spec. */
status trainer_write_config(const struct spec *spec, const char *run_dir) WARN_UNUSED;
/* Reads weights (and, for training, moments, step and tokens) from the newest sound checkpoint of a run directory, or
 * from one checkpoint directory. *found = false when there is none. STATUS_CONFIG when a frozen key differs from the
 * checkpoint's config, STATUS_DATA when t->data are not its data; other differences are logged. A checkpoint of weights
 * alone (ckpt import) starts a run at step 0. */
status trainer_restore(struct trainer *t, const char *path, bool *found) WARN_UNUSED;
/* As trainer_restore for training, but from what state_raw_save has written, with the `meta` of a checkpoint
 * (train/memory_copy.h). */
status trainer_restore_raw(struct trainer *t, json_t *meta, const char *from) WARN_UNUSED;
#endif
