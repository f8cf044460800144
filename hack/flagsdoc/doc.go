// Command flagsdoc writes the flags table of docs/reference/flags.md from the golden file of `csi-provisioner --help`.
// In goes that file, out comes what stands between two markers of that page; with -check it only compares.
// It never starts csi-provisioner: that the golden file is true is the business of a test there.
package main
