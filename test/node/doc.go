// Package node tests what needs root, mounts and loop devices: the node service of the test driver. It is run by
// `make test-node` alone.
package node
