#include "nn/embed.h"

void embed_init(struct embed *m, struct params *p, const struct model_spec *spec)
{
    *m = (struct embed){
        .ids = spec->vocab_size, .d = spec->hidden_size, .positions = spec->context_length, .pos = -1};
    m->table = params_add(p, ROLE_EMBED, 0, m->ids, m->d, "embed.weight");
    params_split(p, m->table, SPLIT_COLUMN_PARALLEL, NULL, 0);
    m->vocab = p->rows[m->table].shape[0];
    m->first = p->tp_rank * m->vocab;
    if (spec->position == POS_LEARNED)
        m->pos = params_add(p, ROLE_POSITION, 0, m->positions, m->d, "positions.weight");
    m->adds = p->tp_rank == 0;
}

status embed_fwd(const struct embed *m, const struct batch *b, struct tensor x, const struct exec *r)
{
    return r->ops->embed_fwd(&(struct embed_fwd_args){.tokens = b->tokens,
                                                      .positions = b->positions,
                                                      .table = params_weight(r->params, m->table),
                                                      .pos_table = m->pos >= 0 && m->adds
                                                                       ? params_weight(r->params, m->pos)
                                                                       : NULL,
                                                      .x = x.data,
                                                      .rows = b->rows,
                                                      .d = m->d,
                                                      .vocab = m->vocab,
                                                      .first = m->first,
                                                      .ids = m->ids,
                                                      .pos_count = m->positions,
                                                      .dt = x.dt},
                             r->stream);
}

status embed_bwd(const struct embed *m, const struct batch *b, struct tensor dx, const struct exec *r)
{
    return r->ops->embed_bwd(
        &(struct embed_bwd_args){.tokens = b->tokens,
                                 .positions = b->positions,
                                 .dx = dx.data,
                                 .dtable = params_grad(r->params, m->table),
                                 .dpos = m->pos >= 0 ? params_grad(r->params, m->pos) : NULL,
                                 .rows = b->rows,
                                 .d = m->d,
                                 .vocab = m->vocab,
                                 .first = m->first,
                                 .ids = m->ids,
                                 .pos_count = m->positions,
                                 .dt = dx.dt},
        r->stream);
}
