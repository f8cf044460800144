// Command refdoc writes the pages of docs that are derived from code and rules: docs/reference/events.md,
// docs/reference/annotations.md and docs/runbooks.md. In go the Go source of pkg and the alert rules, out come whole
// pages; with -check it only compares. It runs nothing of csi-provisioner.
package main
