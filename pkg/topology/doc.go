// Package topology is the arithmetic of where a volume may live: segments, the
// accessibility requirement of a CreateVolume call and the node affinity of a
// PersistentVolume. Facts about nodes and claims go in, CSI and API values come
// out, in an order that depends on nothing but the input. The package never
// looks anything up, keeps no state about claims and never changes its input.
package topology
