// Package memdriver is a CSI driver that keeps its volumes in memory and serves them on a real unix socket,
// for tests and for the demo. It takes a Config and Rules that make it slow, broken or a liar, and gives back
// a record of every call together with the volumes and snapshots that exist. It never touches a disk beyond
// its socket and the target directories of NodePublishVolume, and never keeps the value of a secret.
package memdriver
