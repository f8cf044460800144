// Package source says what a claim is to be filled from and whether that is
// possible now. A claim, the objects that it refers to and the grants of their
// namespace go in; a reference, a content source for CreateVolume or the reason
// against it comes out. It never reads an object and never places a finalizer.
package source
