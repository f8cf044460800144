// Command demo shows csi-provisioner at work on a machine without a cluster: it starts a control plane, the
// in-memory CSI driver and csi-provisioner, lets a claim come and go, and tells what happened.
// In go the programs that make builds, out comes a story on stdout, and whether it went well as the exit code.
// It leaves nothing running, also when it is interrupted, and needs neither a network nor a container engine.
package main
