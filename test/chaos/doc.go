// Package chaos proves that no volume is forgotten, whatever dies when: claims come and go while the driver, the
// API server and the sidecar fail, and the sidecar is killed at every single write of the flow.
// In go a seed and a duration (CHAOS_SEED, CHAOS_DURATION); out come counts and, of each broken promise, the
// calls that led to it.
// It never looks into the sidecar: only volumes of the driver and objects of the API server count.
package chaos
