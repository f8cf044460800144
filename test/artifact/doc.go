// Package artifact holds the tests of what is shipped: bin/csi-provisioner and the recipe of its image.
// In goes what `make build` made; the tests say whether it is static, small, stamped and the same each time.
// It has no code of its own and never starts a control plane.
package artifact
