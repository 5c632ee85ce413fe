// Package redirected tests sidecars to which the kernel redirects all connections of their
// workloads, as in a pod of Kubernetes: real Envoys in network namespaces of their own, with
// nftables rules that the tests write, in front of real backends.
//
// The tests need Linux and root. They talk to the kernel over netlink and run no ip or nft.
package redirected
