// Package sidecar runs the built csi-provisioner as a process of its own, as a kubelet does, for tests that look
// at the whole program.
// In go arguments, environment and a kubeconfig; out come readiness, log, exit code and a way to signal it.
// It builds the binary once per test process, and never runs any of the program's code in the test itself.
package sidecar
