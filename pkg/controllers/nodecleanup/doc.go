// Package nodecleanup ends, in node deployment, what only the instance of one node could end and that node cannot:
// claims that wait for a node without the driver or for one that is gone, and PersistentVolumes of nodes that are gone. Claims and PersistentVolumes from the caches and live looks at Nodes and CSINodes come in, updates
// of claims, deletions of PersistentVolumes and events go out, by one instance at a time. It must never call a
// driver, nor touch what a node that exists may still be working on.
package nodecleanup
