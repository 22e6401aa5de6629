/* ingot ckpt import | export: Hugging Face model directories into runs and back. */
#ifndef INGOT_CLI_CMD_HF_H
#define INGOT_CLI_CMD_HF_H
#include "base/status.h"

#define CMD_HF_IMPORT_USAGE "ckpt import HF_DIR -o RUN [--section.key=value ...]"
#define CMD_HF_EXPORT_USAGE "ckpt export RUN|CHECKPOINT -o HF_DIR [--dtype bf16|fp32] [--shard-gib X]"

/* A run directory with config.yaml, the tokenizer and a checkpoint of step 0, from which `ingot train --resume` goes on.
 * A directory that holds a run is refused; after a failure nothing is left of a directory that this call made. */
status cmd_hf_import(int argc, char **argv);
/* A directory that transformers loads unchanged; it appears as a whole or not at all. */
status cmd_hf_export(int argc, char **argv);
#endif
