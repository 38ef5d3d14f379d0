//! As much of OpenMPI as the comparison calls, loaded at run time: nothing here is needed to build.
//!
//! In OpenMPI a handle is the address of a structure that the library exports, and so it needs no header.

use std::error::Error;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::{null, null_mut};

/// `MPI_IN_PLACE` of OpenMPI.
const IN_PLACE: *const c_void = std::ptr::without_provenance(1);

type Handle = *const c_void;
type Const = *const c_void;
type Mut = *mut c_void;

/// The library, initialised.
pub struct Mpi {
    library: *mut c_void,
    world: Handle,
    float: Handle,
    byte: Handle,
    sum: Handle,
    max: Handle,
}

impl Mpi {
    /// Loads the library and starts it in this process, which `mpirun` has started.
    pub fn load() -> Result<Mpi, Box<dyn Error>> {
        // SAFETY: a constant name; the library is never unloaded.
        let library = unsafe { libc::dlopen(c"libmpi.so.40".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if library.is_null() {
            return Err("cannot load libmpi.so.40\nhint: apt-get install openmpi-bin".into());
        }
        let mut mpi = Mpi { library, world: null(), float: null(), byte: null(), sum: null(), max: null() };
        mpi.world = mpi.symbol("ompi_mpi_comm_world")?;
        mpi.float = mpi.symbol("ompi_mpi_float")?;
        mpi.byte = mpi.symbol("ompi_mpi_byte")?;
        mpi.sum = mpi.symbol("ompi_mpi_op_sum")?;
        mpi.max = mpi.symbol("ompi_mpi_op_max")?;
        // SAFETY: int MPI_Init(int *, char ***), which takes null for both.
        let status = unsafe {
            std::mem::transmute::<Handle, unsafe extern "C" fn(Mut, Mut) -> c_int>(mpi.symbol("MPI_Init")?)(
                null_mut(),
                null_mut(),
            )
        };
        check("MPI_Init", status)?;
        Ok(mpi)
    }

    fn symbol(&self, name: &str) -> Result<Handle, Box<dyn Error>> {
        let terminated = CString::new(name)?;
        // SAFETY: an open library and a terminated name.
        let address = unsafe { libc::dlsym(self.library, terminated.as_ptr()) };
        if address.is_null() { Err(format!("libmpi has no {name}: is it OpenMPI?").into()) } else { Ok(address) }
    }

    /// The library's own name and version.
    pub fn version(&self) -> Result<String, Box<dyn Error>> {
        let mut text = [0u8; 1024];
        let mut length: c_int = 0;
        // SAFETY: int MPI_Get_library_version(char *, int *); 256 bytes are asked for, a terminator included.
        unsafe {
            let call: unsafe extern "C" fn(*mut u8, *mut c_int) -> c_int =
                std::mem::transmute(self.symbol("MPI_Get_library_version")?);
            check("MPI_Get_library_version", call(text.as_mut_ptr(), &raw mut length))?;
        }
        let whole = CStr::from_bytes_until_nul(&text)?.to_string_lossy();
        Ok(whole.split(',').next().unwrap_or_default().to_owned())
    }

    /// This process's number, and how many there are.
    pub fn place(&self) -> Result<(usize, usize), Box<dyn Error>> {
        let ask = |name: &str| -> Result<usize, Box<dyn Error>> {
            let mut number: c_int = 0;
            // SAFETY: int MPI_Comm_{rank,size}(MPI_Comm, int *).
            unsafe {
                let call: unsafe extern "C" fn(Handle, *mut c_int) -> c_int = std::mem::transmute(self.symbol(name)?);
                check(name, call(self.world, &raw mut number))?;
            }
            Ok(usize::try_from(number)?)
        };
        Ok((ask("MPI_Comm_rank")?, ask("MPI_Comm_size")?))
    }

    /// Everybody's bytes, one after the other; all give as many.
    pub fn all_gather_bytes(&self, own: &[u8], world: usize) -> Result<Vec<u8>, Box<dyn Error>> {
        let mut all = vec![0u8; own.len() * world];
        self.calls()?.all_gather(own.as_ptr().cast(), all.as_mut_ptr().cast(), own.len(), self.byte)?;
        Ok(all)
    }

    /// The largest of everybody's values.
    pub fn largest(&self, value: f32) -> Result<f32, Box<dyn Error>> {
        let mut largest = value;
        let call = self.calls()?;
        // SAFETY: as `Calls::all_reduce`, on one float.
        let status =
            unsafe { (call.all_reduce)(IN_PLACE, (&raw mut largest).cast(), 1, self.float, self.max, self.world) };
        check("MPI_Allreduce", status)?;
        Ok(largest)
    }

    /// Returns when every process has come.
    pub fn barrier(&self) -> Result<(), Box<dyn Error>> {
        // SAFETY: int MPI_Barrier(MPI_Comm).
        unsafe {
            let call: unsafe extern "C" fn(Handle) -> c_int = std::mem::transmute(self.symbol("MPI_Barrier")?);
            check("MPI_Barrier", call(self.world))
        }
    }

    /// Leaves; nothing of this library may be called after it.
    pub fn finish(self) -> Result<(), Box<dyn Error>> {
        // SAFETY: int MPI_Finalize(void).
        unsafe {
            let call: unsafe extern "C" fn() -> c_int = std::mem::transmute(self.symbol("MPI_Finalize")?);
            check("MPI_Finalize", call())
        }
    }

    /// The operations that are compared, looked up once.
    pub fn calls(&self) -> Result<Calls<'_>, Box<dyn Error>> {
        // SAFETY: these are the signatures of the MPI standard.
        unsafe {
            Ok(Calls {
                mpi: self,
                all_reduce: std::mem::transmute::<Handle, AllReduce>(self.symbol("MPI_Allreduce")?),
                all_gather: std::mem::transmute::<Handle, Exchange>(self.symbol("MPI_Allgather")?),
                all_to_all: std::mem::transmute::<Handle, Exchange>(self.symbol("MPI_Alltoall")?),
                reduce_scatter: std::mem::transmute::<Handle, ReduceScatter>(self.symbol("MPI_Reduce_scatter_block")?),
                broadcast: std::mem::transmute::<Handle, Broadcast>(self.symbol("MPI_Bcast")?),
            })
        }
    }
}

type AllReduce = unsafe extern "C" fn(Const, Mut, c_int, Handle, Handle, Handle) -> c_int;
type Exchange = unsafe extern "C" fn(Const, c_int, Handle, Mut, c_int, Handle, Handle) -> c_int;
type ReduceScatter = unsafe extern "C" fn(Const, Mut, c_int, Handle, Handle, Handle) -> c_int;
type Broadcast = unsafe extern "C" fn(Mut, c_int, Handle, c_int, Handle) -> c_int;

/// The operations that are compared.
pub struct Calls<'m> {
    mpi: &'m Mpi,
    all_reduce: AllReduce,
    all_gather: Exchange,
    all_to_all: Exchange,
    reduce_scatter: ReduceScatter,
    broadcast: Broadcast,
}

// SAFETY (of every block below): the slices have the lengths that the counts say, which callers give alike on all ranks.
impl Calls<'_> {
    /// Sums in place.
    pub fn sum(&self, values: &mut [f32]) -> Result<(), Box<dyn Error>> {
        let count = c_int::try_from(values.len())?;
        // SAFETY: see above.
        let status = unsafe {
            (self.all_reduce)(IN_PLACE, values.as_mut_ptr().cast(), count, self.mpi.float, self.mpi.sum, self.mpi.world)
        };
        check("MPI_Allreduce", status)
    }

    fn all_gather(&self, own: Const, all: Mut, count: usize, of: Handle) -> Result<(), Box<dyn Error>> {
        let count = c_int::try_from(count)?;
        // SAFETY: see above.
        check("MPI_Allgather", unsafe { (self.all_gather)(own, count, of, all, count, of, self.mpi.world) })
    }

    /// Gives every rank the values of all.
    pub fn gather_all(&self, own: &[f32], all: &mut [f32]) -> Result<(), Box<dyn Error>> {
        self.all_gather(own.as_ptr().cast(), all.as_mut_ptr().cast(), own.len(), self.mpi.float)
    }

    /// Gives every rank its part of everybody's values; `part` is the length of one.
    pub fn exchange(&self, from: &[f32], to: &mut [f32], part: usize) -> Result<(), Box<dyn Error>> {
        let (count, float) = (c_int::try_from(part)?, self.mpi.float);
        let (from, to) = (from.as_ptr().cast(), to.as_mut_ptr().cast());
        // SAFETY: see above.
        check("MPI_Alltoall", unsafe { (self.all_to_all)(from, count, float, to, count, float, self.mpi.world) })
    }

    /// Gives every rank its part of the sum.
    pub fn sum_scatter(&self, all: &[f32], part: &mut [f32]) -> Result<(), Box<dyn Error>> {
        let count = c_int::try_from(part.len())?;
        let (from, to) = (all.as_ptr().cast(), part.as_mut_ptr().cast());
        // SAFETY: see above.
        let status = unsafe { (self.reduce_scatter)(from, to, count, self.mpi.float, self.mpi.sum, self.mpi.world) };
        check("MPI_Reduce_scatter_block", status)
    }

    /// Gives every rank the values of rank 0.
    pub fn broadcast(&self, values: &mut [f32]) -> Result<(), Box<dyn Error>> {
        let count = c_int::try_from(values.len())?;
        // SAFETY: see above.
        let status = unsafe { (self.broadcast)(values.as_mut_ptr().cast(), count, self.mpi.float, 0, self.mpi.world) };
        check("MPI_Bcast", status)
    }
}

fn check(name: &str, status: c_int) -> Result<(), Box<dyn Error>> {
    if status == 0 { Ok(()) } else { Err(format!("{name} failed with status {status}").into()) }
}
