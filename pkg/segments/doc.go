// Package segments knows which topology segments a driver has: live from Node and
// CSINode events, or fixed to what one node's driver said of itself. Events go
// in; the list of segments, its changes, and the accessibility requirement of a
// claim come out. It keeps nothing of a node but its topology labels, never
// walks over the nodes for a claim, and never changes an object it was shown.
package segments
