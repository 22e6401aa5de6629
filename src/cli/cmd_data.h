/* ingot data build | inspect | verify: what the three verbs share. */
#ifndef INGOT_CLI_CMD_DATA_H
#define INGOT_CLI_CMD_DATA_H
#include "base/status.h"

status cmd_data_inspect(int argc, char **argv);
status cmd_data_verify(int argc, char **argv);
#endif
