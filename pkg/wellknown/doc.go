// Package wellknown holds the strings that are API: annotations, finalizers,
// labels, StorageClass parameter keys and fixed names. Each stands here once and
// nothing else does; the package imports nothing and decides nothing.
package wellknown
