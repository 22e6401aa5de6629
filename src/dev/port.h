/* port: who has a TCP port of this host. */
#ifndef INGOT_DEV_PORT_H
#define INGOT_DEV_PORT_H

/* "process 4711 (name)" for who listens there, or "another process". Returns buf. */
const char *port_owner(int port, char buf[128]);
#endif
