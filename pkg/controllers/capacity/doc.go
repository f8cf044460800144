// Package capacity publishes one CSIStorageCapacity object for each pair of
// topology segment and eligible StorageClass, so that the scheduler knows where
// the driver has room. Segments, classes and the driver's answers to GetCapacity
// come in, objects of one namespace with our two labels go out. It never touches
// an object that does not carry both labels, and never writes what is right already.
package capacity
