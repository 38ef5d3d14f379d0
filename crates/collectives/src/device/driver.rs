//! The part of the CUDA driver that we use, loaded at run time: where there is none, nothing here costs anything.
#![expect(unsafe_code, reason = "calls into the driver's library")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// What the driver calls its objects.
pub(super) type Address = u64;
type Context = *mut c_void;
type StreamHandle = *mut c_void;
type EventHandle = *mut c_void;
type ModuleHandle = *mut c_void;
type FunctionHandle = *mut c_void;
type Device = c_int;
type Status = c_int;

/// How memory of another process is named.
pub(super) const HANDLE_BYTES: usize = 64;
/// The device, whichever number it has in a process.
pub(super) const UUID_BYTES: usize = 16;

#[repr(C)]
#[derive(Clone, Copy)]
struct Handle([u8; HANDLE_BYTES]);

#[repr(C)]
struct Uuid([u8; UUID_BYTES]);

/// A copy of rows (CUDA_MEMCPY2D): where from, where to, and what.
#[repr(C)]
struct Rows {
    from: Side,
    to: Side,
    row_bytes: usize,
    rows: usize,
}

/// One side of it: memory of the host or of the device.
#[repr(C)]
struct Side {
    x_bytes: usize,
    y: usize,
    kind: c_int,
    host: *const c_void,
    device: Address,
    array: *mut c_void,
    pitch: usize,
}

const MEMORY_OF_HOST: c_int = 1;
const MEMORY_OF_DEVICE: c_int = 2;

const STREAM_NON_BLOCKING: c_uint = 1;
const EVENT_DISABLE_TIMING: c_uint = 2;
const HOST_REGISTER_DEVICE_MAP: c_uint = 2;
/// Compared as distances, so that counters may wrap around.
const WAIT_UNTIL_AT_LEAST: c_uint = 0;
/// Whatever the stream did before is visible to everybody who sees the value.
const WRITE_WITH_BARRIER: c_uint = 0;
const NOT_READY: Status = 600;
const IPC_LAZY_PEER_ACCESS: c_uint = 1;

/// A plain copy to the device of fewer bytes than this is sent among the commands for the multiprocessors, where it waits
/// for this process's time slice; copies of several rows go to a copy engine, which does not (seen with driver 580).
const SENT_AMONG_COMMANDS: usize = 32 << 10;

/// What the driver says is wrong, for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {reason}")]
pub(super) struct CudaError {
    what: &'static str,
    reason: String,
}

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        struct Functions { $($name: unsafe extern "C" fn($($argument),*) -> Status,)* }

        impl Functions {
            /// SAFETY: `library` is the driver's.
            unsafe fn find(library: *mut c_void) -> Result<Functions, CudaError> {
                // SAFETY: each symbol is a function of the driver with this signature, which is part of its interface.
                unsafe {
                    Ok(Functions { $($name: {
                        type Function = unsafe extern "C" fn($($argument),*) -> Status;
                        std::mem::transmute::<*mut c_void, Function>(symbol(library, $symbol)?)
                    },)* })
                }
            }
        }
    };
}

functions! {
    init = c"cuInit"(c_uint);
    error_text = c"cuGetErrorString"(Status, *mut *const c_char);
    device = c"cuDeviceGet"(*mut Device, c_int);
    uuid = c"cuDeviceGetUuid"(*mut Uuid, Device);
    retain = c"cuDevicePrimaryCtxRetain"(*mut Context, Device);
    release = c"cuDevicePrimaryCtxRelease_v2"(Device);
    set_current = c"cuCtxSetCurrent"(Context);
    allocate = c"cuMemAlloc_v2"(*mut Address, usize);
    free = c"cuMemFree_v2"(Address);
    copy = c"cuMemcpyDtoDAsync_v2"(Address, Address, usize, StreamHandle);
    upload = c"cuMemcpyHtoD_v2"(Address, *const c_void, usize);
    copy_out = c"cuMemcpyDtoHAsync_v2"(*mut c_void, Address, usize, StreamHandle);
    copy_in = c"cuMemcpyHtoDAsync_v2"(Address, *const c_void, usize, StreamHandle);
    copy_rows = c"cuMemcpy2DAsync_v2"(*const Rows, StreamHandle);
    device_pointer = c"cuMemHostGetDevicePointer_v2"(*mut Address, *mut c_void, c_uint);
    pin = c"cuMemHostRegister_v2"(*mut c_void, usize, c_uint);
    unpin = c"cuMemHostUnregister"(*mut c_void);
    stream_create = c"cuStreamCreate"(*mut StreamHandle, c_uint);
    stream_wait = c"cuStreamWaitEvent"(StreamHandle, EventHandle, c_uint);
    stream_query = c"cuStreamQuery"(StreamHandle);
    stream_wait_value = c"cuStreamWaitValue32_v2"(StreamHandle, Address, u32, c_uint);
    stream_write_value = c"cuStreamWriteValue32_v2"(StreamHandle, Address, u32, c_uint);
    stream_synchronize = c"cuStreamSynchronize"(StreamHandle);
    event_create = c"cuEventCreate"(*mut EventHandle, c_uint);
    event_destroy = c"cuEventDestroy_v2"(EventHandle);
    event_record = c"cuEventRecord"(EventHandle, StreamHandle);
    event_synchronize = c"cuEventSynchronize"(EventHandle);
    event_query = c"cuEventQuery"(EventHandle);
    memory_handle = c"cuIpcGetMemHandle"(*mut Handle, Address);
    memory_open = c"cuIpcOpenMemHandle_v2"(*mut Address, Handle, c_uint);
    memory_close = c"cuIpcCloseMemHandle"(Address);
    module_load = c"cuModuleLoadData"(*mut ModuleHandle, *const c_void);
    module_unload = c"cuModuleUnload"(ModuleHandle);
    function = c"cuModuleGetFunction"(*mut FunctionHandle, ModuleHandle, *const c_char);
    launch = c"cuLaunchKernel"(
        FunctionHandle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, StreamHandle, *mut *mut c_void,
        *mut *mut c_void
    );
}

fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, CudaError> {
    // SAFETY: an open library and a name that ends with 0.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    match found.is_null() {
        false => Ok(found),
        true => Err(CudaError {
            what: "the CUDA driver is too old",
            reason: format!("it has no {}", name.to_string_lossy()),
        }),
    }
}

/// The driver, initialised.
pub(super) fn driver() -> Result<&'static Driver, CudaError> {
    static DRIVER: OnceLock<Result<Driver, CudaError>> = OnceLock::new();
    DRIVER.get_or_init(Driver::load).as_ref().map_err(Clone::clone)
}

pub(super) struct Driver {
    functions: Functions,
}

impl Driver {
    fn load() -> Result<Driver, CudaError> {
        // SAFETY: loading a library runs its initialisers, and this one is made to be loaded by anybody.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            let reason = "libcuda.so.1 cannot be loaded".to_owned();
            return Err(CudaError { what: "there is no CUDA driver", reason });
        }
        // SAFETY: it is the driver's library, and stays loaded.
        let driver = Driver { functions: unsafe { Functions::find(library)? } };
        // SAFETY: the first call, as the driver demands.
        driver.check("initialise the CUDA driver", unsafe { (driver.functions.init)(0) })?;
        Ok(driver)
    }

    fn check(&self, what: &'static str, status: Status) -> Result<(), CudaError> {
        if status == 0 {
            return Ok(());
        }
        let mut text = null();
        // SAFETY: writes the address of a constant text, or leaves it null.
        unsafe { (self.functions.error_text)(status, &raw mut text) };
        let reason = match text.is_null() {
            true => format!("error {status}"),
            // SAFETY: a constant of the driver that ends with 0.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        Err(CudaError { what, reason })
    }
}

/// One device, in the context that torch uses too.
pub(super) struct Gpu {
    driver: &'static Driver,
    device: Device,
    context: Context,
}

// SAFETY: contexts may be used from every thread.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl Gpu {
    pub(super) fn open(ordinal: i32) -> Result<Arc<Gpu>, CudaError> {
        let driver = driver()?;
        let (mut device, mut context) = (0, null_mut());
        // SAFETY: out-parameters that live here.
        unsafe {
            driver.check("find the GPU", (driver.functions.device)(&raw mut device, ordinal))?;
            driver.check("use the GPU", (driver.functions.retain)(&raw mut context, device))?;
        }
        Ok(Arc::new(Gpu { driver, device, context }))
    }

    /// Makes it the device of this thread: to be called on every thread before anything else.
    pub(super) fn enter(&self) -> Result<(), CudaError> {
        // SAFETY: a context that is retained.
        self.driver.check("use the GPU", unsafe { (self.driver.functions.set_current)(self.context) })
    }

    pub(super) fn uuid(&self) -> Result<[u8; UUID_BYTES], CudaError> {
        let mut uuid = Uuid([0; UUID_BYTES]);
        // SAFETY: an out-parameter that lives here.
        let status = unsafe { (self.driver.functions.uuid)(&raw mut uuid, self.device) };
        self.driver.check("ask for the GPU's name", status)?;
        Ok(uuid.0)
    }

    pub(super) fn allocate(self: &Arc<Self>, bytes: usize) -> Result<Memory, CudaError> {
        let mut address = 0;
        // SAFETY: as above.
        let status = unsafe { (self.driver.functions.allocate)(&raw mut address, bytes) };
        self.driver.check("take memory of the GPU", status)?;
        Ok(Memory { gpu: Arc::clone(self), address, borrowed: false })
    }

    /// Memory of another process.
    pub(super) fn open_memory(self: &Arc<Self>, handle: [u8; HANDLE_BYTES]) -> Result<Memory, CudaError> {
        let mut address = 0;
        // SAFETY: as above; the driver tells handles that are none.
        let status =
            unsafe { (self.driver.functions.memory_open)(&raw mut address, Handle(handle), IPC_LAZY_PEER_ACCESS) };
        self.driver.check("reach the GPU memory of another rank", status)?;
        Ok(Memory { gpu: Arc::clone(self), address, borrowed: true })
    }

    pub(super) fn upload(&self, target: Address, bytes: &[u8]) -> Result<(), CudaError> {
        // SAFETY: the caller's memory, and device memory as long at least: `target` comes from `allocate`.
        let status = unsafe { (self.driver.functions.upload)(target, bytes.as_ptr().cast(), bytes.len()) };
        self.driver.check("write to the GPU", status)
    }

    /// Makes memory of this process one that the GPU reads and writes by itself, until [`Gpu::unpin`].
    pub(super) fn pin(&self, address: *mut c_void, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: the driver tells memory that is none, and changes nothing that is in it.
        self.driver
            .check("pin memory", unsafe { (self.driver.functions.pin)(address, bytes, HOST_REGISTER_DEVICE_MAP) })
    }

    /// Where the GPU finds pinned memory.
    pub(super) fn device_address(&self, pinned: *mut c_void) -> Result<Address, CudaError> {
        let mut address = 0;
        // SAFETY: an out-parameter that lives here; the driver tells memory that is not pinned.
        let status = unsafe { (self.driver.functions.device_pointer)(&raw mut address, pinned, 0) };
        self.driver.check("reach pinned memory", status)?;
        Ok(address)
    }

    /// Before pinned memory is given back.
    pub(super) fn unpin(&self, address: *mut c_void) {
        // SAFETY: as above. What cannot be unpinned is not, and there is nothing to do about it.
        unsafe { (self.driver.functions.unpin)(address) };
    }

    /// A stream that nobody uses now. They are never destroyed: whoever has seen one, torch for instance, may name it to
    /// the driver at any time.
    pub(super) fn stream(self: &Arc<Self>) -> Result<Stream, CudaError> {
        let mut idle = reusable();
        if let Some(position) = idle.iter().position(|(device, _)| *device == self.device) {
            let (_, number) = idle.swap_remove(position);
            return Ok(Stream { gpu: Arc::clone(self), handle: std::ptr::with_exposed_provenance_mut(number) });
        }
        let mut handle = null_mut();
        // SAFETY: an out-parameter that lives here.
        let status = unsafe { (self.driver.functions.stream_create)(&raw mut handle, STREAM_NON_BLOCKING) };
        self.driver.check("make a stream", status)?;
        Ok(Stream { gpu: Arc::clone(self), handle })
    }

    pub(super) fn event(self: &Arc<Self>) -> Result<Event, CudaError> {
        let mut handle = null_mut();
        // SAFETY: as above.
        let status = unsafe { (self.driver.functions.event_create)(&raw mut handle, EVENT_DISABLE_TIMING) };
        self.driver.check("make an event", status)?;
        Ok(Event { gpu: Arc::clone(self), handle })
    }

    /// Whether a stream, ours or somebody else's, has done everything it was given.
    pub(super) fn is_idle(&self, stream: usize) -> Result<bool, CudaError> {
        let stream = std::ptr::with_exposed_provenance_mut(stream);
        // SAFETY: the caller vouches for its stream.
        match unsafe { (self.driver.functions.stream_query)(stream) } {
            NOT_READY => Ok(false),
            status => self.driver.check("look at a stream", status).map(|()| true),
        }
    }

    /// Compiles a program with one kernel.
    pub(super) fn kernel(self: &Arc<Self>, program: &str, name: &CStr) -> Result<Kernel, CudaError> {
        let text = CString::new(program)
            .map_err(|cause| CudaError { what: "compile for the GPU", reason: cause.to_string() })?;
        let (mut module, mut function) = (null_mut(), null_mut());
        // SAFETY: a text that ends with 0, and out-parameters that live here.
        unsafe {
            let status = (self.driver.functions.module_load)(&raw mut module, text.as_ptr().cast());
            self.driver.check("compile for the GPU", status)?;
            let status = (self.driver.functions.function)(&raw mut function, module, name.as_ptr());
            self.driver.check("compile for the GPU", status)?;
        }
        Ok(Kernel { gpu: Arc::clone(self), module, function })
    }

    /// Has a stream of somebody else, torch's for instance, wait for an event.
    pub(super) fn order(&self, stream: usize, event: &Event) -> Result<(), CudaError> {
        let stream = std::ptr::with_exposed_provenance_mut(stream);
        // SAFETY: the caller vouches for its stream; the event is ours.
        let status = unsafe { (self.driver.functions.stream_wait)(stream, event.handle, 0) };
        self.driver.check("wait for the GPU", status)
    }

    /// Notes down what a stream of somebody else has been given so far.
    pub(super) fn record(&self, stream: usize, event: &Event) -> Result<(), CudaError> {
        let stream = std::ptr::with_exposed_provenance_mut(stream);
        // SAFETY: as above.
        let status = unsafe { (self.driver.functions.event_record)(event.handle, stream) };
        self.driver.check("mark the stream", status)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: retained once, released once; torch holds it too, so that streams stay.
        unsafe { (self.driver.functions.release)(self.device) };
    }
}

// SAFETY: what is made in a context may be used, and given back, on every thread that has entered it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver takes orders from several threads.
unsafe impl Sync for Stream {}
// SAFETY: as above.
unsafe impl Send for Event {}
// SAFETY: as above; no method changes it.
unsafe impl Sync for Event {}
// SAFETY: as above.
unsafe impl Send for Kernel {}

/// Device memory, our own or another rank's.
pub(super) struct Memory {
    gpu: Arc<Gpu>,
    address: Address,
    borrowed: bool,
}

impl Memory {
    pub(super) fn address(&self) -> Address {
        self.address
    }

    pub(super) fn handle(&self) -> Result<[u8; HANDLE_BYTES], CudaError> {
        let mut handle = Handle([0; HANDLE_BYTES]);
        let driver = self.gpu.driver;
        // SAFETY: an out-parameter that lives here.
        let status = unsafe { (driver.functions.memory_handle)(&raw mut handle, self.address) };
        driver.check("share GPU memory between processes", status)?;
        Ok(handle.0)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let functions = &self.gpu.driver.functions;
        // SAFETY: opened or allocated once, and given back once; the driver waits for what still uses it.
        unsafe { if self.borrowed { (functions.memory_close)(self.address) } else { (functions.free)(self.address) } };
    }
}

/// Work in order.
pub(super) struct Stream {
    gpu: Arc<Gpu>,
    handle: StreamHandle,
}

impl Stream {
    /// As a number, for torch.
    pub(super) fn number(&self) -> usize {
        self.handle.expose_provenance()
    }

    /// SAFETY: both ranges are device memory, as long as this is under way.
    pub(super) unsafe fn copy(&self, target: Address, source: Address, bytes: usize) -> Result<(), CudaError> {
        let driver = self.gpu.driver;
        // SAFETY: the caller's promise.
        let status = unsafe { (driver.functions.copy)(target, source, bytes, self.handle) };
        driver.check("copy on the GPU", status)
    }

    /// SAFETY: device memory, and memory of this process as long, as long as this is under way.
    pub(super) unsafe fn copy_out(&self, target: *mut u8, source: Address, bytes: usize) -> Result<(), CudaError> {
        let driver = self.gpu.driver;
        // SAFETY: the caller's promise.
        let status = unsafe { (driver.functions.copy_out)(target.cast(), source, bytes, self.handle) };
        driver.check("copy from the GPU", status)
    }

    /// SAFETY: as for `copy_out`.
    pub(super) unsafe fn copy_in(&self, target: Address, source: *const u8, bytes: usize) -> Result<(), CudaError> {
        let driver = self.gpu.driver;
        if (2..SENT_AMONG_COMMANDS).contains(&bytes) {
            // Two rows; the last byte of an odd number goes in two other ones, which overlap the first.
            for skipped in 0..=bytes % 2 {
                let pitch = bytes / 2;
                let side = |kind, host, device| Side { x_bytes: 0, y: 0, kind, host, device, array: null_mut(), pitch };
                let rows = Rows {
                    from: side(MEMORY_OF_HOST, source.wrapping_add(skipped).cast(), 0),
                    to: side(MEMORY_OF_DEVICE, null(), target + skipped as Address),
                    row_bytes: pitch,
                    rows: 2,
                };
                // SAFETY: the caller's promise, for parts of the memory.
                let status = unsafe { (driver.functions.copy_rows)(&raw const rows, self.handle) };
                driver.check("copy to the GPU", status)?;
            }
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let status = unsafe { (driver.functions.copy_in)(target, source.cast(), bytes, self.handle) };
        driver.check("copy to the GPU", status)
    }

    pub(super) fn wait(&self, event: &Event) -> Result<(), CudaError> {
        self.gpu.order(self.number(), event)
    }

    pub(super) fn record(&self, event: &Event) -> Result<(), CudaError> {
        self.gpu.record(self.number(), event)
    }

    /// Has what follows wait until a word, in pinned memory that the GPU reaches at this address, is at least `value`.
    pub(super) fn wait_value(&self, word: Address, value: u32) -> Result<(), CudaError> {
        let driver = self.gpu.driver;
        // SAFETY: a stream that lives; the driver tells addresses that are none.
        let status = unsafe { (driver.functions.stream_wait_value)(self.handle, word, value, WAIT_UNTIL_AT_LEAST) };
        driver.check("have a stream wait for a flag", status)
    }

    /// Writes such a word when everything before is done.
    pub(super) fn write_value(&self, word: Address, value: u32) -> Result<(), CudaError> {
        let driver = self.gpu.driver;
        // SAFETY: as above.
        let status = unsafe { (driver.functions.stream_write_value)(self.handle, word, value, WRITE_WITH_BARRIER) };
        driver.check("have a stream write a flag", status)
    }

    pub(super) fn is_idle(&self) -> Result<bool, CudaError> {
        self.gpu.is_idle(self.number())
    }

    /// Waits on the host for everything.
    pub(super) fn synchronize(&self) -> Result<(), CudaError> {
        let driver = self.gpu.driver;
        // SAFETY: a stream that lives.
        driver.check("finish on the GPU", unsafe { (driver.functions.stream_synchronize)(self.handle) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        reusable().push((self.gpu.device, self.number()));
    }
}

/// Streams that groups have left, by device.
fn reusable() -> MutexGuard<'static, Vec<(Device, usize)>> {
    static IDLE: Mutex<Vec<(Device, usize)>> = Mutex::new(Vec::new());
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A moment in a stream.
pub(super) struct Event {
    gpu: Arc<Gpu>,
    handle: EventHandle,
}

impl Event {
    /// Whether the stream has come here; also if it was never told to.
    pub(super) fn is_reached(&self) -> Result<bool, CudaError> {
        let driver = self.gpu.driver;
        // SAFETY: an event that lives.
        match unsafe { (driver.functions.event_query)(self.handle) } {
            NOT_READY => Ok(false),
            status => driver.check("look at the GPU", status).map(|()| true),
        }
    }

    /// Waits on the host until the stream has come here.
    pub(super) fn synchronize(&self) -> Result<(), CudaError> {
        let driver = self.gpu.driver;
        // SAFETY: an event that lives.
        driver.check("wait for the GPU", unsafe { (driver.functions.event_synchronize)(self.handle) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made or opened once, destroyed once; who waits for it is not disturbed.
        unsafe { (self.gpu.driver.functions.event_destroy)(self.handle) };
    }
}

/// A compiled kernel.
pub(super) struct Kernel {
    gpu: Arc<Gpu>,
    module: ModuleHandle,
    function: FunctionHandle,
}

impl Kernel {
    /// SAFETY: `arguments` are the kernel's, in order and type, and the memory they name is valid while it runs.
    pub(super) unsafe fn launch(
        &self,
        stream: &Stream,
        blocks: u32,
        threads: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        let driver = self.gpu.driver;
        // SAFETY: the caller's promise.
        let status = unsafe {
            (driver.functions.launch)(
                self.function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream.handle,
                arguments.as_mut_ptr(),
                null_mut(),
            )
        };
        driver.check("start a kernel", status)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: loaded once, unloaded once.
        unsafe { (self.gpu.driver.functions.module_unload)(self.module) };
    }
}
