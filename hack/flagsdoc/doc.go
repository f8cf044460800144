// Command flagsdoc writes the flags table of README.md from the golden file of `csi-provisioner --help`.
// In goes that file, out comes what stands between two markers of the README; with -check it only compares.
// It never starts csi-provisioner: that the golden file is true is the business of a test there.
package main
