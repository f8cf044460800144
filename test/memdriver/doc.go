// Package memdriver is a CSI driver that keeps its volumes in memory and serves them on a real unix socket,
// for tests and for the demo. It takes a Config and Rules that make it slow, broken or a liar, and gives back
// a record of every call together with the volumes and snapshots that exist. It never keeps the value of a secret,
// and touches no disk beyond its socket and the target directories of NodePublishVolume, unless Config.Dir names a folder:
// there volumes are folders and loop devices that pods can write to, and kubelet takes the driver.
package memdriver
