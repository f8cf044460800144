// Package provision makes a volume and a PersistentVolume for each claim of the
// driver, and deletes both when they are released. Events of claims and
// PersistentVolumes go in; CreateVolume and DeleteVolume calls, written objects
// and events come out. It never forgets a create whose result is unknown, never
// runs a create and a delete of one claim at once, and never reads a failed read
// as "nothing there".
//
// The way of a claim, one file each:
//
//	select.go   is the claim ours, and does it need a volume now? (pure)
//	gather.go   reads everything that the decision needs into Facts
//	plan.go     decides: Facts → Plan or an error with its outcome (pure), by
//	            the checks of plansteps.go
//	limiter.go  may a call for its source be made now?
//	begin.go    the operation is recorded in a Lease before the first call
//	apply.go    secret, protection, CreateVolume, response, clean-up
//	protect.go  our finalizer on the source, before the call
//	answer.go   what follows an answer of the driver
//	save.go     PersistentVolume to the API server, for as long as it takes
//	release.go  our finalizer off the snapshot that nothing is made from any more
//	claim.go    puts them together and returns a verdict
//
// What must outlive an attempt is in create.go, what must outlive the process
// in a Lease (package operations): record.go converts between both, recover.go
// goes on with what an earlier process left. volume.go and delete.go are the
// other direction. What users are
// told is in events.go and quiet.go, what is counted in metrics.go and reason.go.
package provision
