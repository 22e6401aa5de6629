/* The cores near a GPU: those of the socket and NUMA node that it is connected to. Threads there, and the memory that
 * they touch first, reach the GPU without a detour over another socket. hwloc knows them; a build without it
 * (INGOT_HWLOC) reads them from sysfs. */
#ifndef INGOT_DEV_NEAR_H
#define INGOT_DEV_NEAR_H
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

/* "0-3,8". Returns text; a list that does not fit in `bytes` is empty. */
const char *near_text(const cpu_set_t *set, char *text, size_t bytes);
/* The same back; false: it is no list. */
bool near_parse(const char *text, cpu_set_t *set);
/* Keeps of *set what is near the PCI device ("0000:18:00.0") and returns the number of cores; 0: none is near, or the
 * device's place is unknown, and *set stays as it was. */
int near_keep(const char *pci_address, cpu_set_t *set);
/* The same by the kernel's files of PCI devices, in `root` ("/sys/bus/pci/devices"). */
int near_keep_sysfs(const char *root, const char *pci_address, cpu_set_t *set);
/* Binds all threads of this process to the cores near the device, of those that it may use: INGOT_CORES, by which
 * `ingot launch` says what all its ranks may use, else its affinity. Returns the number of cores, *set which; 0:
 * nothing has changed. */
int near_bind(const char *pci_address, cpu_set_t *set);
#endif
