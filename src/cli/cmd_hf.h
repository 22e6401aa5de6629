/* ingot ckpt import | export: converts Hugging Face model directories to runs and back. */
#ifndef INGOT_CLI_CMD_HF_H
#define INGOT_CLI_CMD_HF_H
#include "base/status.h"

#define CMD_HF_IMPORT_USAGE "ckpt import HF_DIR -o RUN [--section.key=value ...]"
#define CMD_HF_EXPORT_USAGE "ckpt export RUN|CHECKPOINT -o HF_DIR [--dtype bf16|fp32] [--shard-gib X]"

/* Makes a run directory with config.yaml, the tokenizer and a checkpoint of step 0, from which `ingot train --resume`
 * continues. A directory that holds a run is an error. After a failure, a directory made by this call is removed. */
status cmd_hf_import(int argc, char **argv);
/* Makes a directory that transformers loads unchanged. It appears complete or not at all. */
status cmd_hf_export(int argc, char **argv);
#endif
