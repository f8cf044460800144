// Command bench measures what a volume costs with csi-provisioner in clusters of growing size.
// In goes the built binary; out come a table, a JSON file and an SVG plot: volumes a second, time until a claim has its
// PersistentVolume, CPU, memory, and requests and bytes by verb and resource, on a real control plane with an in-memory
// driver. It judges nothing, leaves nothing running, and never measures the driver or the API server.
package main
