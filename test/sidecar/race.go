//go:build race

package sidecar

// buildFlags make the sidecar watch itself for races when the tests do.
var buildFlags = []string{"-race"}
