// Package snapshotprotect lets VolumeSnapshots go that were protected for a restore which is over.
// Now and then it lists the snapshots; what goes out is one write of each that carries our finalizer although no
// claim is being filled from it.
// It never touches a snapshot of another driver, never decides on a failed read, and never calls the driver.
package snapshotprotect
