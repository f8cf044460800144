// Package features resolves --feature-gates. What the operator wrote comes in,
// one immutable Gates value and notes for the log come out. It never reads a
// flag set, the environment or a gate set that is shared with a library.
package features
