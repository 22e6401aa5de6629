#include "parallel/aside.h"

status aside_open(struct aside *a, dev_stream main)
{
    *a = (struct aside){.main = main};
    if (main == NULL) return STATUS_OK;
    TRY(dev_stream_open_beside(main->dev, &a->queue));
    a->queue.ops = main->ops;
    TRY(dev_fence_open(main->dev, &a->behind));
    return dev_fence_open(main->dev, &a->all);
}

void aside_close(struct aside *a)
{
    if (a->behind.mark) dev_event_close(a->queue.dev, &a->behind);
    if (a->all.mark) dev_event_close(a->queue.dev, &a->all);
    dev_stream_close(&a->queue);
    *a = (struct aside){0};
}

status aside_enter(struct aside *a, dev_stream *s)
{
    *s = a->main ? &a->queue : NULL;
    if (a->main == NULL) return STATUS_OK;
    TRY(dev_event_record(a->main, &a->behind));
    return dev_stream_wait(&a->queue, &a->behind);
}

status aside_join(struct aside *a)
{
    TRY(aside_mark(a, &a->all));
    return aside_wait(a, &a->all);
}

status aside_mark(struct aside *a, struct event *mark)
{
    return a->main ? dev_event_record(&a->queue, mark) : STATUS_OK;
}

status aside_wait(struct aside *a, const struct event *mark)
{
    return a->main ? dev_stream_wait(a->main, mark) : STATUS_OK;
}

status aside_mark_open(const struct aside *a, struct event *mark)
{
    return a->main ? dev_fence_open(a->main->dev, mark) : STATUS_OK;
}

void aside_mark_close(const struct aside *a, struct event *mark)
{
    if (mark->mark) dev_event_close(a->main->dev, mark);
    *mark = (struct event){0};
}
