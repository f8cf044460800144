// Package operations records CreateVolume operations that are in flight, each in a Lease in the driver's own
// namespace, so that a later process can finish them. What goes in is what a claim's volume is made from; what comes
// out is when the operation is recorded, and what an earlier process left behind. It makes no call to the driver and
// decides nothing about a volume.
//
// From the top down: Store (store.go, what callers use) with its requests (execute.go, discover.go) over the pure
// parts: the state of one Lease (slot.go), what a Lease that was found means (found.go), the names (names.go) and the
// text in the annotation (codec.go, operation.go).
package operations
