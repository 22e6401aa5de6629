/* The 1024-byte headers of llm.c and LLMQ. */
#include "data/shard/shard_int.h"

struct kind {
    int32_t magic, version;
    enum shard_type type;
};
static const struct kind kinds[] = {{20240520, 1, SHARD_TYPE_U16}, {20240801, 7, SHARD_TYPE_U32}};

static status header_whole(const struct shard *s, int64_t bytes)
{
    if (bytes >= SHARD_LLMC_HEADER) return STATUS_OK;
    return FAIL(STATUS_DATA, "%s: %lld bytes: not a token shard, whose header alone has %d", s->path,
                (long long)bytes, SHARD_LLMC_HEADER);
}

/* `more`: bytes after the tokens. count is < 2^31, so nothing overflows. */
static status size_check(const struct shard *s, int64_t bytes, int64_t more)
{
    int64_t want = SHARD_LLMC_HEADER + s->count * s->width + more;
    if (bytes == want) return STATUS_OK;
    return FAIL(STATUS_DATA, "%s: %lld bytes, expected %lld (1024 + %lld tokens * %d%s): the file is %s",
                s->path, (long long)bytes, (long long)want, (long long)s->count, s->width,
                more ? " + the mask" : "", bytes < want ? "truncated" : "longer than its header says");
}

status shard_llmc_parse(struct shard *s, const uint8_t *data, int64_t bytes)
{
    TRY(header_whole(s, bytes));
    int32_t magic = shard_i32(data), version = shard_i32(data + 4), count = shard_i32(data + 8);
    const struct kind *kind = magic == kinds[0].magic ? &kinds[0] : &kinds[1];
    if (version != kind->version)
        return FAIL(STATUS_DATA, "%s: shard version %d, expected %d with magic %d", s->path, version,
                    kind->version, magic);
    if (count < 0)
        return FAIL(STATUS_DATA, "%s: token count %d in the header, expected 0 or more", s->path, count);
    s->format = SHARD_LLMC;
    shard_set_type(s, kind->type);
    s->count = count;
    TRY(size_check(s, bytes, 0));
    s->tokens = data + SHARD_LLMC_HEADER;
    return STATUS_OK;
}

status shard_llmc_reserved(const struct shard *s)
{
    const uint8_t *header = s->tokens - SHARD_LLMC_HEADER;
    for (int i = 12; i < SHARD_LLMC_HEADER; i++)
        if (header[i] != 0)
            return FAIL(STATUS_DATA,
                        "%s: byte %d of its header is %d, and 0 in every shard that ingot writes: damaged",
                        s->path, i, header[i]);
    return STATUS_OK;
}

/* i32 at 8: version, bytes per token, tokens, then in version 2: vocabulary, mask. Version 1 has no
 * vocabulary, and its readers look for the mask at the same offset. */
status shard_llmq_parse(struct shard *s, const uint8_t *data, int64_t bytes)
{
    TRY(header_whole(s, bytes));
    int32_t version = shard_i32(data + 8), width = shard_i32(data + 12), count = shard_i32(data + 16),
            vocab = shard_i32(data + 20), masked = shard_i32(data + 24);
    if (version != 1 && version != 2)
        return FAIL(STATUS_DATA, "%s: LLMQ version %d, expected 1 or 2", s->path, version);
    if (width != 4)
        return FAIL(STATUS_DATA, "%s: %d bytes per token in the header, LLMQ has 4", s->path, width);
    if (count < 0)
        return FAIL(STATUS_DATA, "%s: token count %d in the header, expected 0 or more", s->path, count);
    if (version == 2 && (vocab < 0 || masked < 0 || masked > 1))
        return FAIL(STATUS_DATA, "%s: vocabulary %d, mask %d in the header, expected 0 or more, 0 or 1",
                    s->path, vocab, masked);
    s->format = SHARD_LLMQ;
    shard_set_type(s, SHARD_TYPE_I32);
    s->count = count;
    s->vocab_size = version == 2 ? vocab : 0;
    TRY(size_check(s, bytes, masked == 1 ? ((int64_t)count + 7) / 8 : 0));
    s->tokens = data + SHARD_LLMC_HEADER;
    if (masked == 1) s->mask = s->tokens + (int64_t)count * 4;
    return STATUS_OK;
}
