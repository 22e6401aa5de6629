#include "parallel/side_stream.h"

status side_stream_open(struct side_stream *a, dev_stream main)
{
    *a = (struct side_stream){.main = main};
    if (main == NULL) return STATUS_OK;
    TRY(dev_stream_open_side(main->dev, &a->queue));
    a->queue.ops = main->ops;
    TRY(dev_fence_open(main->dev, &a->behind));
    return dev_fence_open(main->dev, &a->all);
}

void side_stream_close(struct side_stream *a)
{
    if (a->behind.mark) dev_event_close(a->queue.dev, &a->behind);
    if (a->all.mark) dev_event_close(a->queue.dev, &a->all);
    dev_stream_close(&a->queue);
    *a = (struct side_stream){0};
}

status side_stream_fork(struct side_stream *a, dev_stream *s)
{
    *s = a->main ? &a->queue : NULL;
    if (a->main == NULL) return STATUS_OK;
    TRY(dev_event_record(a->main, &a->behind));
    return dev_stream_wait(&a->queue, &a->behind);
}

status side_stream_join(struct side_stream *a)
{
    TRY(side_stream_record(a, &a->all));
    return side_stream_wait(a, &a->all);
}

status side_stream_record(struct side_stream *a, struct event *mark)
{
    return a->main ? dev_event_record(&a->queue, mark) : STATUS_OK;
}

status side_stream_wait(struct side_stream *a, const struct event *mark)
{
    return a->main ? dev_stream_wait(a->main, mark) : STATUS_OK;
}

status side_stream_event_open(const struct side_stream *a, struct event *mark)
{
    return a->main ? dev_fence_open(a->main->dev, mark) : STATUS_OK;
}

void side_stream_event_close(const struct side_stream *a, struct event *mark)
{
    if (mark->mark) dev_event_close(a->main->dev, mark);
    *mark = (struct event){0};
}
