// Package volume turns a claim and its class into a CreateVolume request, a
// driver's answer into a PersistentVolume, and a PersistentVolume into the
// decision whether its volume is to be deleted. Objects go in as values and
// nothing of them is changed; requests, objects and decisions come out. It never
// calls a driver or the API server and never sees a secret's value.
package volume
