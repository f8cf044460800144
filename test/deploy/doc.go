// Package deploy reads the shipped manifests, rules and dashboard for the tests that hold them to what they promise.
// In go the files of the repository's deploy folder; out come objects, rules and the names of metrics in use.
// It never talks to a cluster and never changes a file.
package deploy
