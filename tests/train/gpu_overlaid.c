/* Gradients where activations were (plan/grad_overlay.h) on a GPU: the bits of an array of their own, op by op and as a graph. */
#include "train/support_overlay.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

static void the_bits_are_those_of_gradients_apart(void **unused)
{
    (void)unused;
    static const struct overlay_way ways[] = {{"cuda", "bf16", "none", "true"},
                                              {"cuda", "bf16", "selective", "true"},
                                              {"cuda", "fp32", "full", "false"}};
    for (int i = 0; i < 3 * OVERLAY_FAMILIES; i++) overlay_train_both(&overlay_families[i / 3], &ways[i % 3]);
}

int main(void)
{
    struct dev dev;
    if (dev_open(&dev, DEV_CUDA) != STATUS_OK) {
        printf("no GPU: %s\n", status_message());
        return 77;
    }
    dev_close(&dev);
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_bits_are_those_of_gradients_apart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
