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

/* Called between the micro-batches of a step and the batches of an evaluation, on the same places on all ranks: `done`
 * of `parts`. STATUS_STOPPED drops the step or the evaluation. A step of a GPU or of a pipeline is not interrupted: the
 * first is queued as a whole, the second has ranks at different places. Nor is a pipeline's evaluation. */
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
    struct context context; /* of the feed: this rank's part of a micro-batch */
    struct fp8_run fp8;     /* of train.precision=fp8 */

    /* How a step runs. */
    struct exec exec;
    struct side_stream side_stream;
    struct sp_overlap sp_overlap;     /* of tensor parallelism: communication that overlaps GEMMs */
    struct grad_overlap grad_overlap; /* of data parallelism: the all-reduce that overlaps the backward */
    struct pipeline pipeline;
    struct graph graph;        /* of a step; with train.on_spike=skip up to its gradients */
    struct graph graph_update; /* then the rest */
    enum step_mode mode;       /* of the next step */
    int stage_micro_count;     /* micro-batches of the last step */
    struct trainer_pause pause;
    struct verifier *verify; /* train.verify (train/verify.h); NULL: off */
    struct snapshot
        *snapshot; /* copies of a GPU's state beside a step (train/snapshot.h); NULL: there are none */
    struct save
        *save; /* a checkpoint that is written while training goes on (train/save.h); NULL: none was yet */

    /* What the data are (train/data_identity.h): of a run, what is stored in its checkpoints; of a restored model, what
     * its checkpoint says. NULL: not known. Owned. */
    json_t *data;
    bool accept_data; /* other data are no error: --accept-data-change */

    /* Instead of optim.schedule: from `low` in step `first` to `high` in the last of `steps`, by the same factor each
     * step; steps 0: none (train/lr_find.h). */
    struct lr_rise {
        double low, high;
        int64_t first, steps;
    } rise;

    /* Progress. */
    int64_t step;   /* optimizer steps done */
    int64_t tokens; /* tokens consumed */
    int64_t steps_total;
    struct health health;   /* of the steps done */
    struct spike spike;     /* train/spike.h; of the steps done */
    struct lineage lineage; /* what was left out on the way here */
    bool told_unsound;      /* the log says that checkpoints are not sound */
};

/* Opens the spec's device and op set and reserves all memory: for training as the spec says (`args` NULL), or for
 * `args`, whose ops, device and limit are filled in here. `isa`: see ops_cpu. Weights are zero until
 * trainer_init_weights or trainer_restore. */
status trainer_open(struct trainer *t, const struct spec *spec, const struct plan_lay_args *args,
                    const char *isa) WARN_UNUSED;
/* One of several ranks, for training. STATUS_COMM when ranks have different specs. */
status trainer_open_rank(struct trainer *t, const struct spec *spec, const char *isa,
                         struct comm *comm) WARN_UNUSED;
/* Master weights alone, to read or write files: on the host, for any device, precision or backend of the spec;
 * t->spec stays as given. */
status trainer_open_weights(struct trainer *t, const struct spec *spec) WARN_UNUSED;
void trainer_close(struct trainer *t);
status trainer_init_weights(struct trainer *t) WARN_UNUSED;
/* model.engram_fold: makes the token map from the run's tokenizer, for fresh weights. Checkpoints store it. */
status trainer_fold(struct trainer *t, const struct tokenizer *tokenizer) WARN_UNUSED;

struct step_result {
    double loss, lr, grad_norm, grad_norm_clipped; /* over all ranks; loss: mean nats per valid token */
    double mtp_loss;                               /* mean over the MTP modules; NaN without them */
    double z_loss;                                 /* train.z_loss: its term, not part of loss; NaN without */
    double halt_loss;                    /* of the halting head, per document and segment; NaN without */
    double aux_loss, load_max, load_min; /* of moe layers; else 0 */
    double moe_dropped;                  /* share of their slots; NaN without model.moe_capacity */
    double bubble;                       /* of a pipeline: fraction of time without compute; else NaN */
    int64_t tokens, targets, padding;    /* of the step; in the loss; of no document */
    /* Of FP8, in steps that fp8.monitor measures; else NaN: tensors that saturate; the least binades between the
     * largest element and the largest code, over inputs and over gradients. */
    enum spike_kind spike;     /* what the step is beside those before it, */
    bool left_out;             /* whether its update was left out, */
    char spike_why[SPIKE_WHY]; /* and why */
    double fp8_saturated, fp8_headroom_x, fp8_headroom_dy;
};
/* One optimizer step on all micro-batches of `b` and of the other ranks. STATUS_NUMERIC when the loss or a gradient is
 * not finite, STATUS_STOPPED when t->pause says so; weights and moments are then unchanged. */
status train_step(struct trainer *t, const struct step_batch *b, struct step_result *out) WARN_UNUSED;
/* Forgets the captured step. */
static inline void step_graphs_close(struct trainer *t)
{
    dev_graph_close(&t->dev, &t->graph);
    dev_graph_close(&t->dev, &t->graph_update);
}
/* Whether t->pause is called inside a step. */
bool trainer_pauses(const struct trainer *t);

/* Mean loss over the validation shards in order: every target once, or the windows of the first `tokens` tokens. Bits
 * per byte charge the mean loss for each token of the text, also for the first one, which nothing predicts.
 * STATUS_STOPPED when t->pause says so. */
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
/* The same for training, from what state_raw_save has written with the `meta` of a checkpoint (train/memory_copy.h). */
status trainer_restore_raw(struct trainer *t, json_t *meta, const char *from) WARN_UNUSED;
#endif
