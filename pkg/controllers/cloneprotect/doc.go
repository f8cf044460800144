// Package cloneprotect lets the source of a clone go when nobody needs it any more.
// Changes of claims come in; what goes out is one write of a claim that is being deleted, without the finalizer
// that kept it while it was copied.
// It never touches a claim that is not being deleted, never scans a namespace, and never calls the driver.
package cloneprotect
