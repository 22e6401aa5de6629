#include "parallel/side_stream.h"

status side_stream_open(struct side_stream *a, dev_stream main)
{
    *a = (struct side_stream){.main = main};
    if (main == NULL) return STATUS_OK;
    TRY(dev_stream_open_side(main->dev, &a->queue));
    a->queue.ops = main->ops;
    TRY(dev_fence_open(main->dev, &a->forked));
    return dev_fence_open(main->dev, &a->joined);
}

void side_stream_close(struct side_stream *a)
{
    if (a->forked.mark) dev_event_close(a->queue.dev, &a->forked);
    if (a->joined.mark) dev_event_close(a->queue.dev, &a->joined);
    dev_stream_close(&a->queue);
    *a = (struct side_stream){0};
}

status side_stream_fork(struct side_stream *a, dev_stream *s)
{
    *s = a->main ? &a->queue : NULL;
    if (a->main == NULL) return STATUS_OK;
    a->apart = true;
    TRY(dev_event_record(a->main, &a->forked));
    return dev_stream_wait(&a->queue, &a->forked);
}

status side_stream_join(struct side_stream *a)
{
    if (!a->apart) return STATUS_OK;
    a->apart = false;
    TRY(side_stream_record(a, &a->joined));
    return side_stream_wait(a, &a->joined);
}

status side_stream_record(struct side_stream *a, struct event *event)
{
    return a->main ? dev_event_record(&a->queue, event) : STATUS_OK;
}

status side_stream_wait(struct side_stream *a, const struct event *event)
{
    return a->main ? dev_stream_wait(a->main, event) : STATUS_OK;
}

status side_stream_event_open(const struct side_stream *a, struct event *event)
{
    return a->main ? dev_fence_open(a->main->dev, event) : STATUS_OK;
}

void side_stream_event_close(const struct side_stream *a, struct event *event)
{
    if (event->mark) dev_event_close(a->main->dev, event);
    *event = (struct event){0};
}
