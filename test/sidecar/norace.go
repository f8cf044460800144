//go:build !race

package sidecar

// buildFlags are those of a plain build.
var buildFlags []string
