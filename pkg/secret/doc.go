// Package secret finds out which Secret a StorageClass names for each of the
// calls that may carry one. Class parameters and the names of a claim and its
// volume go in, a reference comes out. It never reads a Secret and never holds
// a value of one.
package secret
