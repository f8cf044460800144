// Package audit compares the volumes that the driver lists with the PersistentVolumes of the cluster. Two pagers go in,
// a Report comes out. It reads only: it deletes no volume and writes no object.
package audit
